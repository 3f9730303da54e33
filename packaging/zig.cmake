# SPDX-License-Identifier: Apache-2.0
# Makes zig cc the C compiler. Included before project(), so that CMake's own compiler checks use it.
#
# zig includes the headers and symbol versions of every glibc: a library built for glibc 2.17 loads
# in an image of 2014, whatever the distribution of the build machine.

if(NOT Python_EXECUTABLE)
	find_program(Python_EXECUTABLE NAMES python3 REQUIRED)
endif()
execute_process(
	COMMAND ${Python_EXECUTABLE} -c
		"import os, ziglang; print(os.path.join(os.path.dirname(ziglang.__file__), 'zig'))"
	OUTPUT_VARIABLE zig OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed ERROR_QUIET)
if(failed)
	message(FATAL_ERROR "${Python_EXECUTABLE} has no ziglang. Build with ./dev setup or pip, "
		"or use the system's compiler with -DGPUSHARE_ZIG=OFF (for checks only: the result "
		"requires this machine's glibc)")
endif()

# With another architecture, this machine cannot run the programs: ./dev check aarch64.
cmake_host_system_information(RESULT architecture QUERY OS_PLATFORM)
set(GPUSHARE_ARCHITECTURE ${architecture} CACHE STRING "Target architecture")
set(GPUSHARE_GLIBC_TARGET ${GPUSHARE_ARCHITECTURE}-linux-gnu.2.17)
set(GPUSHARE_STATIC_TARGET ${GPUSHARE_ARCHITECTURE}-linux-musl
	CACHE STRING "What static programs are built for; empty: they are not static, and need glibc")

set(CMAKE_C_COMPILER ${zig} cc)
set(CMAKE_C_FLAGS_INIT "-target ${GPUSHARE_GLIBC_TARGET}")
# zig links by itself and knows no --dependency-file, which newer CMake passes to a GNU-like linker.
set(CMAKE_C_LINKER_DEPFILE_SUPPORTED FALSE)
