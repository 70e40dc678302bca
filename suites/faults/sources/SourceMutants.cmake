# The library compiled from copies of its sources that hold mutants (README.md beside this). Included where the targets exist.
find_package(Python3 3.9 REQUIRED COMPONENTS Interpreter)
set(mutants_here ${PROJECT_SOURCE_DIR}/suites/faults/sources)
set(mutants_folder ${PROJECT_BINARY_DIR}/source_mutants)
execute_process(COMMAND ${Python3_EXECUTABLE} ${mutants_here}/mutants.py files OUTPUT_VARIABLE mutated_files
                OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
string(REPLACE "\n" ";" mutated_files "${mutated_files}")
list(TRANSFORM mutated_files PREPEND ${PROJECT_SOURCE_DIR}/ OUTPUT_VARIABLE mutants_originals)
list(TRANSFORM mutated_files PREPEND ${mutants_folder}/ OUTPUT_VARIABLE mutants_copies)

add_custom_command(
  OUTPUT ${mutants_copies} ${mutants_folder}/source_mutants.inc
  COMMAND ${Python3_EXECUTABLE} ${mutants_here}/mutants.py write --out ${mutants_folder}
  DEPENDS ${mutants_originals} ${mutants_here}/lexer.py ${mutants_here}/mutants.py ${mutants_here}/sites.py ${mutants_here}/refused.txt
  COMMENT "Writing mutants of the sources"
  VERBATIM)
add_custom_target(source_mutants DEPENDS ${mutants_copies} ${mutants_folder}/source_mutants.inc)

# In a target's list of sources the copies take the places of the originals.
foreach(target nsa nsa_data)
  get_target_property(sources ${target} SOURCES)
  get_target_property(folder ${target} SOURCE_DIR)
  set(with_copies "")
  foreach(source IN LISTS sources)
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${folder} OUTPUT_VARIABLE original)
    if(original IN_LIST mutants_originals)
      cmake_path(RELATIVE_PATH original BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE file)
      list(APPEND with_copies ${mutants_folder}/${file})
      list(REMOVE_ITEM mutated_files ${file})
    else()
      list(APPEND with_copies ${original})
    endif()
  endforeach()
  set_target_properties(${target} PROPERTIES SOURCES "${with_copies}")
  add_dependencies(${target} source_mutants)
endforeach()
if(mutated_files)
  message(FATAL_ERROR "mutants of what is in no target: ${mutated_files}")
endif()

target_compile_definitions(suites PRIVATE NSA_VALIDATE_SOURCE_MUTANTS)
target_include_directories(suites PRIVATE ${mutants_folder})
add_dependencies(suites source_mutants)
