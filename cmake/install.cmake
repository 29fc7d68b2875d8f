# What `cmake --install` leaves: the library, its headers, the two programs with their pages, what
# find_package and pkg-config need, and what an author of a backend begins with. All of it can be moved to another prefix. Components are the
# packages of cmake/package.cmake: library, development, tools, cuda.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/pariskv)

# What a plug-in is built with: the C headers, and core/format under its own include root.
add_library(pariskv_backend INTERFACE)
set_target_properties(pariskv_backend PROPERTIES EXPORT_NAME backend)
target_include_directories(pariskv_backend INTERFACE
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/pariskv/backend>)

install(DIRECTORY api/include/pariskv DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        COMPONENT development FILES_MATCHING PATTERN *.h PATTERN *.hpp)
install(DIRECTORY core/format DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/pariskv/backend/core
        COMPONENT development FILES_MATCHING PATTERN *.h)

# What docs/backend-guide.md begins with and is read beside it: skeleton, reference, pages, examples.
set(data_dir ${CMAKE_INSTALL_DATADIR}/pariskv)
install(DIRECTORY backends/template backends/cpu_ref backends/host DESTINATION ${data_dir}/backends
        COMPONENT development)
install(DIRECTORY docs examples DESTINATION ${data_dir} COMPONENT development
        PATTERN man EXCLUDE PATTERN *.html EXCLUDE PATTERN target EXCLUDE
        PATTERN __pycache__ EXCLUDE PATTERN build EXCLUDE)

install(TARGETS pariskv pariskv_backend EXPORT pariskv
        LIBRARY COMPONENT library NAMELINK_COMPONENT development)
install(EXPORT pariskv FILE pariskvTargets.cmake NAMESPACE pariskv:: DESTINATION ${package_dir}
        COMPONENT development)
if(PARISKV_STATIC)
  # An export of its own: only those who ask for the archive need absl.
  install(TARGETS pariskv_static EXPORT pariskv_static ARCHIVE COMPONENT development)
  install(EXPORT pariskv_static FILE pariskvStaticTargets.cmake NAMESPACE pariskv::
          DESTINATION ${package_dir} COMPONENT development)
endif()
if(PARISKV_TOOLS)
  install(TARGETS pariskv_cli pkv-conformance RUNTIME COMPONENT tools)
  install(FILES docs/man/pariskv.1 docs/man/pkv-conformance.1
          DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT tools)
endif()

configure_package_config_file(cmake/pariskvConfig.cmake.in pariskvConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(pariskvConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/pariskvConfig.cmake
              ${PROJECT_BINARY_DIR}/pariskvConfigVersion.cmake
        DESTINATION ${package_dir} COMPONENT development)

# ${pcfiledir} keeps the .pc files right when the prefix moves.
file(RELATIVE_PATH pc_to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
foreach(pc pariskv.pc pariskv-static.pc)
  if(PARISKV_STATIC OR NOT pc MATCHES static)
    configure_file(cmake/${pc}.in ${pc} @ONLY)
    install(FILES ${PROJECT_BINARY_DIR}/${pc} DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
            COMPONENT development)
  endif()
endforeach()
