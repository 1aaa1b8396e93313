# Whether the CUDA back end is built. AUTO: where an nvcc works that is new enough, which ON insists on. Never under a
# sanitizer, nor for another processor.
set(oldest_nvcc 13.0)  # older ones are not tested

if(TILEWISE_CUDA AND NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(TILEWISE_NVCC nvcc PATHS /usr/local/cuda/bin)
  mark_as_advanced(TILEWISE_NVCC)
  if(TILEWISE_NVCC)
    set(ENV{CUDACXX} ${TILEWISE_NVCC})
  endif()
endif()

if(TILEWISE_CUDA STREQUAL AUTO)
  set(TILEWISE_CUDA OFF)
  if(NOT TILEWISE_SANITIZE AND NOT CMAKE_CROSSCOMPILING)
    if(NOT CMAKE_CUDA_COMPILER)
      unset(CMAKE_CUDA_COMPILER CACHE)  # an nvcc may have come since
    endif()
    include(CheckLanguage)
    check_language(CUDA)
    if(CMAKE_CUDA_COMPILER)
      execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --version OUTPUT_VARIABLE nvcc_says ERROR_QUIET)
      if(nvcc_says MATCHES "release ([0-9.]+)" AND CMAKE_MATCH_1 VERSION_GREATER_EQUAL oldest_nvcc)
        set(TILEWISE_CUDA ON)
      endif()
    endif()
    if(NOT TILEWISE_CUDA)
      message(STATUS "The CUDA back end is left out: no nvcc of ${oldest_nvcc} or later works here")
    endif()
  endif()
elseif(TILEWISE_CUDA)
  if(TILEWISE_SANITIZE OR CMAKE_CROSSCOMPILING)
    message(FATAL_ERROR "TILEWISE_CUDA=ON goes with neither TILEWISE_SANITIZE nor a cross compiler")
  endif()
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    message(FATAL_ERROR "TILEWISE_CUDA=ON needs nvcc ${oldest_nvcc} or later: on the PATH, or named by CUDACXX in the "
      "environment or by -DCMAKE_CUDA_COMPILER. TILEWISE_CUDA=OFF leaves the CUDA back end out.")
  endif()
endif()

if(TILEWISE_CUDA)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES OFF)  # src/cuda/ has its own list
  endif()
  enable_language(CUDA)
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS oldest_nvcc)
    message(FATAL_ERROR "TILEWISE_CUDA=ON needs nvcc ${oldest_nvcc} or later; ${CMAKE_CUDA_COMPILER} is "
      "${CMAKE_CUDA_COMPILER_VERSION}")
  endif()
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake before 3.26 does not know it of newer compilers
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
endif()
