# HIP sources, one architecture at a time. CMake's HIP language where it works; Debian's hipcc 5.2
# cannot be enabled as one, and is called here.
#   PKV_HIP_NATIVE  whether the language is used
#   PKV_HIPCC       hipcc otherwise
include(CheckLanguage)
set(PARISKV_HIP_LANGUAGE AUTO CACHE STRING "CMake's HIP language: ON, OFF, or AUTO")
set(PKV_HIP_NATIVE FALSE)
if(NOT PARISKV_HIP_LANGUAGE STREQUAL "OFF")
  check_language(HIP)
  if(CMAKE_HIP_COMPILER)
    enable_language(HIP)
    set(CMAKE_HIP_STANDARD 20)
    set(PKV_HIP_NATIVE TRUE)
  elseif(NOT PARISKV_HIP_LANGUAGE STREQUAL "AUTO")
    message(FATAL_ERROR "PARISKV_HIP_LANGUAGE=${PARISKV_HIP_LANGUAGE}, but CMake finds no HIP")
  endif()
endif()
if(NOT PKV_HIP_NATIVE)
  find_program(PKV_HIPCC hipcc HINTS $ENV{ROCM_PATH}/bin /opt/rocm/bin REQUIRED)
endif()

# Bits as docs/numerics.md, section 2, wants them: contraction off, subnormals kept (HIP's default),
# division and roots rounded. What hipcc says to its linker is of no use to a compilation.
set(PKV_HIP_FLAGS -ffp-contract=off -fhip-fp32-correctly-rounded-divide-sqrt
    -Wall -Wextra -Wshadow -Wno-unused-command-line-argument)
if(PARISKV_WERROR)
  list(APPEND PKV_HIP_FLAGS -Werror)
endif()

# out: those of `architectures` that the compiler has all it needs for.
function(pkv_hip_known out architectures)
  set(known "")
  set(empty ${CMAKE_CURRENT_BINARY_DIR}/empty.hip)
  file(WRITE ${empty} "#include <hip/hip_runtime.h>\n__global__ void empty() {}\n")
  foreach(architecture IN LISTS architectures)
    set(compiler ${PKV_HIPCC})
    if(PKV_HIP_NATIVE)
      separate_arguments(flags UNIX_COMMAND "${CMAKE_HIP_FLAGS}")
      set(compiler ${CMAKE_HIP_COMPILER} ${flags})
    endif()
    if(NOT DEFINED PKV_HIP_KNOWS_${architecture})
      execute_process(
        COMMAND ${compiler} -x hip --offload-arch=${architecture} -c ${empty} -o ${empty}.o
        RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
      set(PKV_HIP_KNOWS_${architecture} "${failed}" CACHE INTERNAL "0: yes")
    endif()
    if(PKV_HIP_KNOWS_${architecture} STREQUAL "0")
      list(APPEND known ${architecture})
    endif()
  endforeach()
  set(${out} "${known}" PARENT_SCOPE)
endfunction()

# Adds the objects of `sources`, compiled for one architecture with `definitions`, to `target`.
function(pkv_hip_sources target architecture definitions sources)
  list(TRANSFORM definitions PREPEND -D)
  if(PKV_HIP_NATIVE)
    set(objects ${target}_${architecture})
    add_library(${objects} OBJECT ${sources})
    set_source_files_properties(${sources} PROPERTIES LANGUAGE HIP)
    set_target_properties(${objects} PROPERTIES HIP_ARCHITECTURES ${architecture})
    target_include_directories(${objects} PRIVATE ${PROJECT_SOURCE_DIR}
                               ${PROJECT_SOURCE_DIR}/api/include)
    target_compile_options(${objects} PRIVATE ${definitions} ${PKV_HIP_FLAGS} -fvisibility=hidden)
    target_link_libraries(${target} PRIVATE ${objects})
    return()
  endif()
  set(level -O2)
  if(CMAKE_BUILD_TYPE MATCHES "^(Release|MinSizeRel)$")
    set(level -O3 -DNDEBUG)
  endif()
  foreach(source IN LISTS sources)
    get_filename_component(name ${source} NAME)
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${architecture}/${name}.o)
    get_filename_component(source ${source} ABSOLUTE)
    file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/${architecture})
    add_custom_command(
      OUTPUT ${object}
      COMMAND ${CMAKE_COMMAND} -E env HIP_PLATFORM=amd ${CMAKE_CXX_COMPILER_LAUNCHER}
              ${PKV_HIPCC} --offload-arch=${architecture} -x hip -std=c++20 ${level}
              -fPIC -fvisibility=hidden ${PKV_HIP_FLAGS} ${definitions}
              -I${PROJECT_SOURCE_DIR} -I${PROJECT_SOURCE_DIR}/api/include
              -MD -MF ${object}.d -MT ${object} -c ${source} -o ${object}
      DEPENDS ${source}
      DEPFILE ${object}.d
      COMMENT "hipcc ${architecture} ${name}"
      VERBATIM)
    target_sources(${target} PRIVATE ${object})
    set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
  endforeach()
endfunction()
