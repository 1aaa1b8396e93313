# tilewise_require_packages(WHO DEBIAN OPTION PACKAGES..): finds them, or says which is missing, in which Debian packages
# they come and which option leaves out what needs them. A macro, so that what is found is the caller's.
macro(tilewise_require_packages who debian option)
  foreach(package ${ARGN})
    find_package(${package} QUIET)
    if(NOT ${package}_FOUND)
      message(FATAL_ERROR "${who} needs ${package} (Debian: ${debian}). -D${option}=OFF leaves it out.")
    endif()
  endforeach()
endmacro()
