# The target `docs`: the documentation site, in build/<preset>/site. Not part of `all`. Says what is
# missing when it is built.
add_custom_target(docs
  COMMAND docs/build.sh ${rueda_BINARY_DIR}/site
  WORKING_DIRECTORY ${rueda_SOURCE_DIR} USES_TERMINAL VERBATIM)
