# Installs the library, moves it elsewhere, builds example/ against it and compares what it prints with what the build
# tree's code computes (nsa/tests/library_reference.cpp). Variables: Install.cmake.
set(work ${BUILD}/install_test)
set(prefix ${work}/moved)
file(REMOVE_RECURSE ${work})
file(MAKE_DIRECTORY ${work})

function(run what)  # run(WHAT COMMAND...): its standard output in ${output}
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE told ERROR_VARIABLE errors)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "${what}: exit code ${code}\n${told}\n${errors}")
  endif()
  set(output "${told}" PARENT_SCOPE)
endfunction()

run("install" ${CMAKE_COMMAND} --install ${BUILD} --prefix ${work}/first --component library)
file(RENAME ${work}/first ${prefix})

# Nothing in the package may point back into this tree, or to the place where it was first.
file(GLOB package ${prefix}/lib*/cmake/nsa_validate/*.cmake ${prefix}/lib*/*/cmake/nsa_validate/*.cmake)
if(NOT package)
  message(FATAL_ERROR "no CMake package was installed in ${prefix}")
endif()
foreach(file IN LISTS package)
  file(STRINGS ${file} lines)
  foreach(path ${SOURCE}/ ${BUILD} ${work}/first)
    string(FIND "${lines}" "${path}" at)
    if(NOT at EQUAL -1)
      message(FATAL_ERROR "${file} names ${path}")
    endif()
  endforeach()
endforeach()

# An installed header includes installed ones only.
file(GLOB_RECURSE headers RELATIVE ${prefix}/include ${prefix}/include/*.hpp)
foreach(header IN LISTS headers)
  file(STRINGS ${prefix}/include/${header} includes REGEX "^#include \"")
  foreach(include IN LISTS includes)
    string(REGEX REPLACE ".*\"(.*)\".*" "\\1" name "${include}")
    if(NOT EXISTS ${prefix}/include/${name})
      message(FATAL_ERROR "${header} includes ${name}, which is not installed")
    endif()
  endforeach()
endforeach()

string(REPLACE "|" "\\;" prefixes "${PREFIXES}")
run("configuring the example" ${CMAKE_COMMAND} -S ${SOURCE}/example -B ${work}/build -G ${GENERATOR}
    -D "CMAKE_PREFIX_PATH=${prefix}\\;${prefixes}" -D CMAKE_BUILD_TYPE=Release -D CMAKE_CXX_COMPILER=${CXX}
    -D CMAKE_CUDA_COMPILER=${CUDA} -D CUDAToolkit_ROOT=${CUDA_ROOT} -D CUDA_TOOLKIT_ROOT_DIR=${CUDA_ROOT}
    -D CMAKE_MAKE_PROGRAM=${MAKE})
run("building the example" ${CMAKE_COMMAND} --build ${work}/build)

set(arguments ${SOURCE}/configs/models/tiny.yaml ${work}/weights.safetensors)
run("the build tree's code" ${REFERENCE} ${arguments})
set(expected "${output}")
run("the example" ${work}/build/example ${arguments})
if(NOT output STREQUAL expected)
  message(FATAL_ERROR "the example printed\n${output}and the build tree's code\n${expected}")
endif()
if(NOT output MATCHES "loss [0-9]+\\.[0-9]+\n$")
  message(FATAL_ERROR "no finite loss: ${output}")
endif()
execute_process(COMMAND ${work}/build/example ${SOURCE}/configs/models/paper.yaml ${work}/weights.safetensors
                RESULT_VARIABLE code ERROR_VARIABLE told)
if(NOT code EQUAL 1 OR NOT told MATCHES "not the parameters of this model")
  message(FATAL_ERROR "weights of another model: exit code ${code}, ${told}")
endif()
message(STATUS "${output}")
