# What tests/ and tests/emulated/ both build, each with a tilewise_test(NAME SOURCES..) of its own.
set(tests ${CMAKE_CURRENT_LIST_DIR})
set(pedantic -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror)

tilewise_test(arm_test arm_test.cpp)
tilewise_test(kernels_test kernels_test.cpp)
tilewise_test(tiled_forward_test tiled_forward_test.cpp)
tilewise_test(tiled_backward_test tiled_backward_test.cpp)

# Vector code: the tests are baseline code, and reach each instruction set through its own translation unit.
tilewise_test(simd_test
  simd_elements.cpp simd_math.cpp simd_ops_portable.cpp simd_philox.cpp simd_scores.cpp simd_sink_gradient.cpp
  simd_tiles.cpp simd_traits.cpp)
target_compile_definitions(simd_test PRIVATE ${instruction_sets_macro})
set_source_files_properties(${tests}/simd_ops_portable.cpp PROPERTIES COMPILE_OPTIONS -Wno-psabi)
foreach(isa ${instruction_sets})
  target_sources(simd_test PRIVATE ${tests}/simd_ops_${isa}.cpp)
  set_source_files_properties(${tests}/simd_ops_${isa}.cpp PROPERTIES COMPILE_OPTIONS "${isa_flags_${isa}}")
endforeach()

# What the object code of each instruction set must be like.
if(NOT TILEWISE_SANITIZE)
  foreach(isa ${instruction_sets})
    add_test(NAME check_isa_symbols_${isa}
      COMMAND ${Python3_EXECUTABLE} ${tests}/check_isa_symbols.py ${CMAKE_NM} ${isa}
        $<TARGET_OBJECTS:tilewise_core> $<TARGET_OBJECTS:simd_test>
      COMMAND_EXPAND_LISTS)
    add_test(NAME check_hot_loops_${isa}
      COMMAND ${Python3_EXECUTABLE} ${tests}/check_hot_loops.py ${CMAKE_OBJDUMP} ${isa}
        $<TARGET_OBJECTS:tilewise_core> $<TARGET_OBJECTS:simd_test>
      COMMAND_EXPAND_LISTS)
  endforeach()
endif()

# The installed header in C99, without a warning, against the shared library.
add_executable(api_c99_test ${tests}/api_c_test.c)
set_target_properties(api_c99_test PROPERTIES C_STANDARD 99 C_EXTENSIONS OFF)
target_compile_options(api_c99_test PRIVATE ${pedantic})
target_link_libraries(api_c99_test PRIVATE tilewise::tilewise)
