# pkv_target: what every target of ours shares: include roots, warnings, hardening, sanitizers,
# coverage.
# pkv_unity: fewer, larger pieces to compile, where that is asked for.
# pkv_library_warnings: conversions too, for the code that ships; tests and tools do without.
# pkv_exact: the compiler may not change the bits of a floating sum (docs/numerics.md).

set(PKV_WARNINGS -Wall -Wextra -Wpedantic -Wshadow)

# What optimisers guess about the standard library is shown, and judged by a reader.
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  set(PKV_NO_ERROR -Wno-error=array-bounds -Wno-error=stringop-overflow -Wno-error=restrict
      -Wno-error=maybe-uninitialized)
endif()

# The order counts: in clang, -fno-fast-math after it would turn contraction on again.
set(PKV_EXACT_FLAGS -fno-fast-math -ffp-contract=off)

# What SECURITY.md promises of binaries; tests/install/package_test.py looks for it in them. Those
# that a compiler does not know are left out. Sanitizers check more, in their own way.
if(PARISKV_HARDENING AND NOT PARISKV_SANITIZE AND NOT PARISKV_COVERAGE)
  include(CheckCXXCompilerFlag)
  foreach(flag -fstack-protector-strong -fstack-clash-protection -fcf-protection
               -mbranch-protection=standard)
    string(MAKE_C_IDENTIFIER "PKV_KNOWS${flag}" known)
    check_cxx_compiler_flag(-Werror\ ${flag} ${known})
    if(${known})
      list(APPEND PKV_HARDENING $<$<COMPILE_LANGUAGE:C,CXX>:${flag}>)
    endif()
  endforeach()
  # Of the C library, and of no use without optimisation.
  list(APPEND PKV_HARDENING
    $<$<AND:$<COMPILE_LANGUAGE:C,CXX>,$<NOT:$<CONFIG:Debug>>>:-U_FORTIFY_SOURCE>
    $<$<AND:$<COMPILE_LANGUAGE:C,CXX>,$<NOT:$<CONFIG:Debug>>>:-D_FORTIFY_SOURCE=3>)
  set(PKV_HARDENING_LINK LINKER:-z,relro LINKER:-z,now LINKER:-z,noexecstack)
endif()

function(pkv_target target)
  target_include_directories(${target} PRIVATE
    ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/api/include)
  target_compile_options(${target} PRIVATE ${PKV_WARNINGS} ${PKV_HARDENING})
  target_link_options(${target} PRIVATE ${PKV_HARDENING_LINK})
  if(PARISKV_WERROR)
    target_compile_options(${target} PRIVATE -Werror ${PKV_NO_ERROR})
  endif()
  if(PARISKV_SANITIZE)
    target_compile_options(${target} PRIVATE
      -fsanitize=${PARISKV_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(${target} PRIVATE -fsanitize=${PARISKV_SANITIZE})
    if(PARISKV_SANITIZE MATCHES fuzzer)  # of the standard library's functions no fuzzer learns
      target_compile_options(${target} PRIVATE
        -fsanitize-coverage-ignorelist=${PROJECT_SOURCE_DIR}/tests/fuzz/uncounted.txt)
    endif()
  endif()
  if(PARISKV_COVERAGE)
    target_compile_options(${target} PRIVATE --coverage)
    target_link_options(${target} PRIVATE --coverage)
  endif()
endfunction()

# With PARISKV_UNITY, the sources of the target are compiled eight at a time, but for those named
# after it: names in their unnamed namespaces are those of other sources too.
function(pkv_unity target)
  if(PARISKV_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
    set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endfunction()

function(pkv_library_warnings target)
  target_compile_options(${target} PRIVATE -Wconversion -Wno-sign-conversion)
endfunction()

function(pkv_exact target)
  target_compile_options(${target} PRIVATE ${PKV_EXACT_FLAGS})
endfunction()
