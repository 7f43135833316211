# What `cmake --install` puts where. Everything is found relative to where the package lies, so that
# it may be moved as a whole. Components (cmake --install --component NAME): runtime, the libraries
# that programs load; tools, the programs; dev, what programs are built with; python, the wheel's.
include(CMakePackageConfigHelpers)

# Where programs and libraries look for libraries, after the install. The loader would take an empty
# entry for the current directory, so those that look for none of ours have no path at all.
set_target_properties(rueda ruedarun PROPERTIES INSTALL_RPATH "")
install(TARGETS rueda EXPORT ruedaTargets LIBRARY COMPONENT runtime NAMELINK_COMPONENT dev)
install(TARGETS ruedarun RUNTIME COMPONENT tools)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT runtime)
install(FILES bindings/c/include/rueda/rueda.h bindings/cpp/include/rueda/rueda.hpp
              bindings/cpp/include/rueda/elastic.hpp bindings/cpp/include/rueda/run.hpp
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/rueda COMPONENT dev)
install(DIRECTORY bindings/cpp/include/rueda/cpp  # the sections of rueda.hpp
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/rueda COMPONENT dev)

if(TARGET rueda_bench)
  set_target_properties(rueda_bench PROPERTIES
    INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  install(TARGETS rueda_bench RUNTIME COMPONENT tools)
endif()

# librueda.so looks for its modules in the folder `rueda` beside itself and nowhere else.
foreach(module rueda_gloo_module rueda_nccl_module)
  if(TARGET ${module})
    set_target_properties(${module} PROPERTIES INSTALL_RPATH "")
    install(TARGETS ${module} DESTINATION ${CMAKE_INSTALL_LIBDIR}/rueda COMPONENT runtime)
  endif()
endforeach()

# An export of its own: a project without torch must not trip over a target that needs it. No path
# to torch: the program that links the adapter brings its own.
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/rueda)
if(rueda_has_torch)
  set_target_properties(rueda_torch PROPERTIES INSTALL_RPATH "$ORIGIN" EXPORT_NAME torch)
  install(TARGETS rueda_torch EXPORT ruedaTorchTargets
          LIBRARY COMPONENT runtime NAMELINK_COMPONENT dev)
  install(FILES bindings/torch/include/rueda/precision.hpp bindings/torch/include/rueda/strategy.hpp
                bindings/torch/include/rueda/torch.hpp bindings/torch/include/rueda/torch_deprecated.hpp
                bindings/torch/include/rueda/torch_elastic.hpp bindings/torch/include/rueda/training.hpp
          DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/rueda COMPONENT dev)
  install(EXPORT ruedaTorchTargets NAMESPACE rueda:: DESTINATION ${package_dir} COMPONENT dev)
  install(FILES cmake/RuedaFindTorch.cmake DESTINATION ${package_dir} COMPONENT dev)
endif()

install(EXPORT ruedaTargets NAMESPACE rueda:: DESTINATION ${package_dir} COMPONENT dev)
configure_package_config_file(cmake/ruedaConfig.cmake.in ruedaConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(ruedaConfigVersion.cmake COMPATIBILITY ${rueda_compatibility})
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/ruedaConfig.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/ruedaConfigVersion.cmake
        DESTINATION ${package_dir} COMPONENT dev)

file(RELATIVE_PATH rueda_pc_prefix
  ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(cmake/rueda.pc.in rueda.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/rueda.pc
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)
