# The target `docs`: the API's documentation, in build/<preset>/docs/html. Not part of `all`.
find_package(Doxygen 1.9 QUIET)
if(DOXYGEN_FOUND)
  message(STATUS "API documentation: target docs (doxygen ${DOXYGEN_VERSION})")
  set(rueda_docs_dir ${rueda_BINARY_DIR}/docs)
  configure_file(docs/api/Doxyfile.in ${rueda_docs_dir}/Doxyfile @ONLY)
  add_custom_target(docs
    COMMAND Doxygen::doxygen ${rueda_docs_dir}/Doxyfile
    COMMAND ${CMAKE_COMMAND} -E echo "${rueda_docs_dir}/html/index.html"
    WORKING_DIRECTORY ${rueda_SOURCE_DIR} VERBATIM)
else()
  message(STATUS "API documentation: no target docs, for there is no doxygen (Debian: doxygen)")
endif()
