# cmake --install: headers, library, command, CMake package, pkg-config file and licence. The tree may be moved after.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tilewise)
install(TARGETS tilewise EXPORT tilewiseTargets)
install(EXPORT tilewiseTargets NAMESPACE tilewise:: DESTINATION ${package_dir})
install(DIRECTORY include/tilewise DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES LICENSE THIRD_PARTY_NOTICES.md DESTINATION ${CMAKE_INSTALL_DOCDIR})

# The CUDA back end lies beside libtilewise.so; whoever opens it looks there.
if(TILEWISE_CUDA)
  install(TARGETS tilewise_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} NAMELINK_SKIP)
  set_target_properties(tilewise PROPERTIES INSTALL_RPATH $ORIGIN)
  if(TARGET tilewise_cli)
    file(RELATIVE_PATH bin_to_lib ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
    set_target_properties(tilewise_cli PROPERTIES INSTALL_RPATH $ORIGIN/${bin_to_lib})
  endif()
endif()

configure_package_config_file(cmake/tilewiseConfig.cmake.in ${PROJECT_BINARY_DIR}/tilewiseConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tilewiseConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tilewiseConfig.cmake ${PROJECT_BINARY_DIR}/tilewiseConfigVersion.cmake
        DESTINATION ${package_dir})

set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH path_to_prefix ${CMAKE_INSTALL_PREFIX}/${pkgconfig_dir} ${CMAKE_INSTALL_PREFIX})
configure_file(cmake/tilewise.pc.in ${PROJECT_BINARY_DIR}/tilewise.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tilewise.pc DESTINATION ${pkgconfig_dir})
