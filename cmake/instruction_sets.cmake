# The instruction sets beyond the baseline for which this build holds code, their compiler flags, and the macro by which
# the lists of kernels and of tests know.
set(isa_flags_avx2 -mavx2 -mfma -mf16c)
set(isa_flags_avx512 ${isa_flags_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl)

set(isa_flags_neon)
foreach(bits 128 256 512)
  set(isa_flags_sve${bits} -march=armv8.2-a+sve -msve-vector-bits=${bits})
endforeach()

set(instruction_sets)
set(instruction_sets_macro)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(instruction_sets avx2 avx512)
  set(instruction_sets_macro TILEWISE_X86)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(instruction_sets neon sve128 sve256 sve512)
  set(instruction_sets_macro TILEWISE_ARM)
endif()
