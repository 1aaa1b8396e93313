# Whether the CUDA back end is built. AUTO: where CMake finds nvcc, and never under a sanitizer or for another processor.
if(TILEWISE_CUDA STREQUAL AUTO)
  include(CheckLanguage)
  check_language(CUDA)
  set(TILEWISE_CUDA OFF)
  if(CMAKE_CUDA_COMPILER AND NOT TILEWISE_SANITIZE AND NOT CMAKE_CROSSCOMPILING)
    set(TILEWISE_CUDA ON)
  endif()
endif()
if(TILEWISE_CUDA)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES OFF)  # src/cuda/ has its own list
  endif()
  enable_language(CUDA)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake before 3.26 does not know it of newer compilers
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
endif()
