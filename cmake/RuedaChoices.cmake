# What whoever configures has chosen, checked: options of three values, and places.

# The option is ON, OFF or AUTO afterwards, whichever of CMake's words for them was given.
macro(rueda_read_choice name)
  string(TOUPPER "${${name}}" rueda_choice)
  if(rueda_choice MATCHES "^(1|ON|TRUE|YES|Y)$")
    set(${name} ON)
  elseif(rueda_choice MATCHES "^(0|OFF|FALSE|NO|N)$")
    set(${name} OFF)
  elseif(rueda_choice STREQUAL "AUTO")
    set(${name} AUTO)
  else()
    message(FATAL_ERROR "${name}=${${name}}: expected ON, OFF or AUTO")
  endif()
endmacro()

# A folder that was named and is not there would be passed over in silence.
function(rueda_check_folder name path what)
  if(NOT path STREQUAL "" AND NOT IS_DIRECTORY "${path}")
    message(FATAL_ERROR "${name}=${path}: there is no such ${what}")
  endif()
endfunction()
