# Helpers that every folder uses: one place for warnings, sanitizers, precompiled headers and test wiring.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)

set(KV_VENDOR_HEADERS "$ENV{KUBE_VRAM_HEADERS}" CACHE PATH "Folder with cuda.h and nvml.h")
if(NOT KV_VENDOR_HEADERS)
  execute_process(COMMAND ${CMAKE_SOURCE_DIR}/hack/setup --print-headers OUTPUT_VARIABLE KV_VENDOR_HEADERS
                  OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
endif()
if(NOT EXISTS ${KV_VENDOR_HEADERS}/cuda.h OR NOT EXISTS ${KV_VENDOR_HEADERS}/nvml.h)
  message(FATAL_ERROR "cuda.h and nvml.h are not in ${KV_VENDOR_HEADERS}: run `make setup` first")
endif()

set(KV_WARNINGS -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Werror)
set(KV_SANITIZE_FLAGS "")
if(KV_SANITIZE STREQUAL "address")
  set(KV_SANITIZE_FLAGS -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
elseif(KV_SANITIZE STREQUAL "thread")
  set(KV_SANITIZE_FLAGS -fsanitize=thread -fno-omit-frame-pointer)
endif()

function(kv_options target)
  target_compile_options(${target} PRIVATE ${KV_WARNINGS} ${KV_SANITIZE_FLAGS})
  target_link_options(${target} PRIVATE ${KV_SANITIZE_FLAGS})
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_include_directories(${target} SYSTEM PRIVATE ${KV_VENDOR_HEADERS})
endfunction()

# Precompiled headers, where a header costs more than a second in every file that includes it: GoogleTest for all tests, Boost.JSON for those who
# ask (PCH json). Each holds that one header and nothing else, so that a file still has to include what it uses.
option(KV_PCH "Use precompiled headers" ON)
set(KV_PCH_HEADER_test <gtest/gtest.h>)
set(KV_PCH_NEEDS_test GTest::gtest)
set(KV_PCH_HEADER_json <boost/json.hpp>)
set(KV_PCH_NEEDS_json Boost::json)
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/pch/main.cc CONTENT "int main() {}\n")

# kv_precompiled(target set library|program)   the two kinds differ in -fPIC and -fPIE
function(kv_precompiled target set kind)
  if(NOT KV_PCH)
    return()
  endif()
  set(owner kv_pch_${set}_${kind})
  if(NOT TARGET ${owner})
    if(kind STREQUAL "library")
      add_library(${owner} STATIC EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/pch/main.cc)
    else()
      add_executable(${owner} EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/pch/main.cc)
      set_target_properties(${owner} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/pch)
    endif()
    kv_options(${owner})
    target_link_libraries(${owner} PRIVATE ${KV_PCH_NEEDS_${set}})
    # Without the time of the build in it, the same header gives the same file, and ccache finds what was compiled with it.
    target_compile_options(${owner} PRIVATE SHELL:-Xclang\ -fno-pch-timestamp)
    target_precompile_headers(${owner} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${KV_PCH_HEADER_${set}}>)
  endif()
  target_compile_options(${target} PRIVATE SHELL:-Xclang\ -fno-pch-timestamp)
  target_precompile_headers(${target} REUSE_FROM ${owner})
endfunction()

# kv_library(name SOURCES... [DEPS targets...] [PCH json])   a static library of product code
function(kv_library name)
  cmake_parse_arguments(A "" "PCH" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${A_SOURCES})
  kv_options(${name})
  if(A_PCH)
    kv_precompiled(${name} ${A_PCH} library)
  endif()
  target_link_libraries(${name} PUBLIC ${A_DEPS})
endfunction()

# kv_program(name SOURCES... [DEPS targets...] [PCH json])   a program in <prefix>/bin
function(kv_program name)
  cmake_parse_arguments(A "" "PCH" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${A_SOURCES})
  kv_options(${name})
  if(A_PCH)
    kv_precompiled(${name} ${A_PCH} program)
  endif()
  target_link_libraries(${name} PRIVATE ${A_DEPS})
endfunction()

# kv_test(name SOURCES... [DEPS targets...] [NEEDS targets...] [LABELS l...] [TIMEOUT s] [ENV K=V...])
# A GoogleTest program run as one ctest; NEEDS are built with it (programs and libraries it starts). LABELS once: too heavy to
# run again under the sanitizers, or nothing would be learnt from it.
function(kv_test name)
  cmake_parse_arguments(A "" "TIMEOUT" "SOURCES;DEPS;NEEDS;LABELS;ENV" ${ARGN})
  if(NOT KV_TESTS)
    return()
  endif()
  find_package(GTest REQUIRED)
  add_executable(${name} ${A_SOURCES})
  kv_options(${name})
  kv_precompiled(${name} test program)
  target_link_libraries(${name} PRIVATE ${A_DEPS} GTest::gtest GTest::gtest_main Threads::Threads)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 120)
  endif()
  if(A_NEEDS)
    add_dependencies(${name} ${A_NEEDS})
  endif()
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${A_TIMEOUT} LABELS "${A_LABELS}"
    ENVIRONMENT "KUBE_VRAM_PREFIX=${KV_PREFIX};KV_SOURCE_DIR=${CMAKE_SOURCE_DIR};${A_ENV}")
endfunction()

# The table of the driver's functions, for the simulated driver's stubs and the guard's wrappers.
set(KV_CUDA_SYMBOLS ${CMAKE_BINARY_DIR}/gen/cuda_symbols.json)
add_custom_command(OUTPUT ${KV_CUDA_SYMBOLS}
  COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/gen
  COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/hack/cuda_symbols.py --clang ${CMAKE_C_COMPILER} --header ${KV_VENDOR_HEADERS}/cuda.h
          --exports ${CMAKE_SOURCE_DIR}/data/cuda-driver-symbols-13.0.txt --json ${KV_CUDA_SYMBOLS}
  DEPENDS ${CMAKE_SOURCE_DIR}/hack/cuda_symbols.py ${CMAKE_SOURCE_DIR}/data/cuda-driver-symbols-13.0.txt ${KV_VENDOR_HEADERS}/cuda.h
  VERBATIM)
add_custom_target(cuda_symbols DEPENDS ${KV_CUDA_SYMBOLS})
