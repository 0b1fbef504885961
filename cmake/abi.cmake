# softhca_abi_library(TARGET OUTPUT_NAME VERSION TABLE CODE): a shared library
# that exports exactly what abi/TABLE.txt lists. Sources are added with
# target_sources(); public functions that no source defines become weak stubs
# that fail with CODE.
set(SOFTHCA_LIBDIR lib/softhca)

find_program(AWK NAMES awk mawk gawk REQUIRED)

function(softhca_abi_library target name version table code)
  set(generate ${PROJECT_SOURCE_DIR}/abi/generate.awk)
  set(txt ${PROJECT_SOURCE_DIR}/abi/${table}.txt)
  set(map ${CMAKE_CURRENT_BINARY_DIR}/${table}.map)
  set(stubs ${CMAKE_CURRENT_BINARY_DIR}/${table}-stubs.c)
  foreach(out map stubs)
    add_custom_command(OUTPUT ${${out}}
      COMMAND ${AWK} -v out=${out} -v code=${code} -f ${generate} ${txt} > ${${out}}
      DEPENDS ${generate} ${txt} VERBATIM)
  endforeach()
  add_custom_target(${target}-map DEPENDS ${map})

  add_library(${target} SHARED ${stubs})
  add_dependencies(${target} ${target}-map)
  string(REGEX MATCH "^[0-9]+" soversion ${version})
  set_target_properties(${target} PROPERTIES
    OUTPUT_NAME ${name} VERSION ${version} SOVERSION ${soversion}
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib
    BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH $ORIGIN
    LINK_DEPENDS ${map})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_options(${target} PRIVATE -Wl,--version-script=${map})
  if(SOFTHCA_LTO)
    # As in libsofthca; so the caller of a call that waits is found without rbp
    # (cli/softhca_stacks.c).
    target_compile_options(${target} PRIVATE -fomit-frame-pointer)
  endif()
  if(TARGET softhca_shared)
    target_link_libraries(${target} PRIVATE softhca_shared)
  endif()
  target_link_libraries(${target} PRIVATE Threads::Threads)
  install(TARGETS ${target} LIBRARY DESTINATION ${SOFTHCA_LIBDIR})
endfunction()

# softhca_abi_levels(TABLE RESULT): what softhca --version says of a library: the
# newest public version node in abi/TABLE.txt, and the private ones.
function(softhca_abi_levels table result)
  set(txt ${PROJECT_SOURCE_DIR}/abi/${table}.txt)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${txt})
  file(STRINGS ${txt} rows REGEX "^[a-z_]")
  set(newest 0)
  set(private "")
  foreach(row IN LISTS rows)
    string(REGEX REPLACE "^[^ ]+ +([^ ]+) .*" "\\1" nodes "${row}")
    string(REPLACE "," ";" nodes "${nodes}")
    foreach(node IN LISTS nodes)
      if(node MATCHES "^P([0-9]+)$")
        list(APPEND private "IBVERBS_PRIVATE_${CMAKE_MATCH_1}")
      elseif(node MATCHES "^([A-Z]+_)([0-9.]+)$")
        set(family ${CMAKE_MATCH_1})
        if(CMAKE_MATCH_2 VERSION_GREATER newest)
          set(newest ${CMAKE_MATCH_2})
        endif()
      endif()
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES private)
  list(SORT private COMPARE NATURAL)
  list(JOIN private ", " private)
  if(private)
    set(private ", ${private}")
  endif()
  set(${result} "${family}${newest}${private}" PARENT_SCOPE)
endfunction()
