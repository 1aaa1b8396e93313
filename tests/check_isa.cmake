# What the object code of ${isa} must be like.
foreach(check check_isa_symbols:${CMAKE_NM} check_hot_loops:${CMAKE_OBJDUMP})
  string(REPLACE ":" ";" check ${check})
  list(GET check 0 name)
  list(GET check 1 tool)
  add_test(NAME ${name}_${isa}
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/${name}.py ${tool} ${isa}
      $<TARGET_OBJECTS:tilewise_core> $<TARGET_OBJECTS:simd_test>
    COMMAND_EXPAND_LISTS)
endforeach()
