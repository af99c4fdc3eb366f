# What `cmake --install` puts where, how other projects find it, and the packages that `cpack` makes.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(SINKGRAD_HEADERS_DIR ${CMAKE_INSTALL_INCLUDEDIR}/sinkgrad)
set(SINKGRAD_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/sinkgrad)

# Public are the headers beside the sources; kernels (ops/cpu, cuda) are not. `all_verify_interface_header_sets` compiles each alone.
file(GLOB SINKGRAD_HEADERS CONFIGURE_DEPENDS core/*.h ops/*.h nn/*.h nn/inspect/*.h models/*.h datasets/*.h)
target_sources(sinkgrad PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${SINKGRAD_HEADERS} ops/cpu/instructions.h)
target_include_directories(sinkgrad INTERFACE $<INSTALL_INTERFACE:${SINKGRAD_HEADERS_DIR}>)
set_target_properties(sinkgrad PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})

install(TARGETS sinkgrad EXPORT sinkgrad
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT development
  FILE_SET HEADERS DESTINATION ${SINKGRAD_HEADERS_DIR} COMPONENT development)
install(EXPORT sinkgrad NAMESPACE sinkgrad:: FILE sinkgradTargets.cmake DESTINATION ${SINKGRAD_CMAKE_DIR} COMPONENT development)
if(SINKGRAD_HAS_CUDA)
  install(TARGETS sinkgrad_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime)
  set_target_properties(sinkgrad_cuda PROPERTIES INSTALL_RPATH "$ORIGIN")
endif()
if(TARGET sinkgrad_cli)
  set_target_properties(sinkgrad_cli PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  install(TARGETS sinkgrad_cli DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT runtime)
  install(DIRECTORY recipes DESTINATION ${CMAKE_INSTALL_DATADIR}/sinkgrad COMPONENT runtime FILES_MATCHING PATTERN *.json)
endif()
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT runtime)
install(FILES README.md CHANGELOG.md LICENSE NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT runtime)

configure_package_config_file(cmake/sinkgradConfig.cmake.in ${PROJECT_BINARY_DIR}/sinkgradConfig.cmake INSTALL_DESTINATION ${SINKGRAD_CMAKE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/sinkgradConfigVersion.cmake COMPATIBILITY SameMinorVersion)
file(RELATIVE_PATH SINKGRAD_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)  # wherever it is moved to
configure_file(cmake/sinkgrad.pc.in ${PROJECT_BINARY_DIR}/sinkgrad.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/sinkgradConfig.cmake ${PROJECT_BINARY_DIR}/sinkgradConfigVersion.cmake DESTINATION ${SINKGRAD_CMAKE_DIR} COMPONENT development)
install(FILES ${PROJECT_BINARY_DIR}/sinkgrad.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)

# The public headers as pages.
find_program(DOXYGEN doxygen)
if(DOXYGEN AND PROJECT_IS_TOP_LEVEL)
  set(SINKGRAD_DOCS ${CMAKE_COMMAND} -E env SINKGRAD_DOCS=${PROJECT_BINARY_DIR}/docs ${DOXYGEN} docs/Doxyfile)
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/docs)
  add_custom_target(docs COMMAND ${SINKGRAD_DOCS} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} VERBATIM)
endif()

if(PROJECT_IS_TOP_LEVEL)
  set(CPACK_GENERATOR DEB TGZ)
  set(CPACK_PACKAGE_CONTACT "Sinkgrad maintainers <maintainers@sinkgrad.example>")
  set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "train, inspect and check Sinkformers: tensors, autograd and doubly stochastic attention")
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
  set(CPACK_STRIP_FILES ON)
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_PACKAGE_SECTION science)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR})
  set(CPACK_DEBIAN_PACKAGE_DEPENDS libopenblas0-openmp)  # the build that shares our threads
  set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "nlohmann-json3-dev (>= 3.9)")  # for programs built against the headers
  include(CPack)
endif()
