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

# kv_library(name SOURCES... [DEPS targets...])   a static library of product code
function(kv_library name)
  cmake_parse_arguments(A "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${A_SOURCES})
  kv_options(${name})
  target_link_libraries(${name} PUBLIC ${A_DEPS})
endfunction()

# kv_program(name SOURCES... [DEPS targets...])   a program in <prefix>/bin
function(kv_program name)
  cmake_parse_arguments(A "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${A_SOURCES})
  kv_options(${name})
  target_link_libraries(${name} PRIVATE ${A_DEPS})
endfunction()

# kv_test(name SOURCES... [DEPS targets...] [NEEDS targets...] [LABELS l...] [TIMEOUT s] [ENV K=V...])
# A GoogleTest program run as one ctest; NEEDS are built with it (programs and libraries it starts).
function(kv_test name)
  cmake_parse_arguments(A "" "TIMEOUT" "SOURCES;DEPS;NEEDS;LABELS;ENV" ${ARGN})
  if(NOT KV_TESTS)
    return()
  endif()
  find_package(GTest REQUIRED)
  add_executable(${name} ${A_SOURCES})
  kv_options(${name})
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
