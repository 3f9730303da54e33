# SPDX-License-Identifier: Apache-2.0
# The functions that the CMakeLists.txt of each directory use.
#
#   gpushare_static_program(NAME source...)
#       A static program, installed next to the Python package's commands.
#   gpushare_program(NAME DESTINATION dir SOURCES source...)
#       A program for the tenant's libc, installed in gpushare/lib/dir.
#   gpushare_library(NAME OUTPUT file [SONAME soname] [DESTINATION dir] [NEEDED path]
#                    [LIBRARIES lib...] SOURCES source...)
#       A library for the tenant's process, installed as gpushare/lib/dir/file. Symbols are hidden
#       unless their source exports them, and bind within the library first. NEEDED is the absolute
#       path of a library that the loader must also load. It need not exist on this machine.
#   gpushare_test(NAME source... [LIBRARIES lib...])
#       A C unit test for ctest: exit status 0 is success, 77 is skipped. Only with GPUSHARE_TESTS.
#       The target gpushare-tests builds all tests and their dependencies.

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_SKIP_RPATH ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# A library that runs in every tenant's process must be small; only sanitized builds use -g1.
set(CMAKE_C_FLAGS_RELEASE "-O2")
if(GPUSHARE_SANITIZE)
	# The sanitizers find as much at -O1, closer to the source, and it compiles twice as fast.
	set(CMAKE_C_FLAGS_RELEASE "-O1")
endif()

add_compile_options(-Wall -Wextra -Wconversion -Wmissing-prototypes
	-ffile-prefix-map=${CMAKE_SOURCE_DIR}/= -fstack-protector-strong)
add_link_options(LINKER:-z,relro LINKER:-z,now LINKER:-z,noexecstack)
if(NOT GPUSHARE_SANITIZE)
	# AddressSanitizer does not know the checked functions. musl has none, and ignores this.
	add_compile_options(-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2)
endif()
if(GPUSHARE_WERROR)
	add_compile_options(-Werror)
endif()
if(GPUSHARE_ZIG)
	# zig enables this in unoptimized builds, and its runtime then aborts the tenant.
	add_compile_options(-fno-sanitize=undefined)
	add_link_options(-s)
endif()
if(GPUSHARE_SANITIZE)
	# Lines are what their reports name.
	add_compile_options(-g1 -fsanitize=${GPUSHARE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
	add_link_options(-fsanitize=${GPUSHARE_SANITIZE})
endif()

if(SKBUILD)
	set(programs_dir ${SKBUILD_SCRIPTS_DIR})
else()
	set(programs_dir bin)
endif()
set(libraries_dir gpushare/lib)

# A directory without a CMakeLists.txt has no C code.
# A macro, so that what a directory sets with PARENT_SCOPE reaches the next directory.
macro(gpushare_add_folder folder)
	if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/CMakeLists.txt)
		add_subdirectory(${folder})
	endif()
endmacro()

function(gpushare_static_program name)
	add_executable(${name} ${ARGN})
	target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/libhook/include)
	set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
	if(GPUSHARE_ZIG AND GPUSHARE_STATIC_TARGET)
		target_compile_options(${name} PRIVATE -target ${GPUSHARE_STATIC_TARGET})
		target_link_options(${name} PRIVATE -target ${GPUSHARE_STATIC_TARGET} -static)
	endif()
	target_link_options(${name} PRIVATE -pie)
	install(TARGETS ${name} RUNTIME DESTINATION ${programs_dir})
endfunction()

function(gpushare_program name)
	cmake_parse_arguments(PARSE_ARGV 1 arg "" "DESTINATION" "SOURCES;LIBRARIES")
	add_executable(${name} ${arg_SOURCES})
	target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/libhook/include)
	target_link_libraries(${name} PRIVATE ${arg_LIBRARIES})
	target_link_options(${name} PRIVATE -pie)
	set_target_properties(${name} PROPERTIES
		RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib/${arg_DESTINATION})
	install(TARGETS ${name} RUNTIME DESTINATION ${libraries_dir}/${arg_DESTINATION})
endfunction()

function(gpushare_library name)
	cmake_parse_arguments(PARSE_ARGV 1 arg "" "OUTPUT;SONAME;DESTINATION;NEEDED" "SOURCES;LIBRARIES")
	add_library(${name} SHARED ${arg_SOURCES})
	target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/libhook/include)
	set_target_properties(${name} PROPERTIES PREFIX "" SUFFIX "" OUTPUT_NAME ${arg_OUTPUT}
		LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib/${arg_DESTINATION})
	if(arg_SONAME)
		set_target_properties(${name} PROPERTIES NO_SONAME ON)
		target_link_options(${name} PRIVATE LINKER:-soname,${arg_SONAME})
	endif()
	target_link_options(${name} PRIVATE LINKER:-Bsymbolic)
	if(arg_NEEDED)
		gpushare_needed(${name}-needed ${arg_NEEDED})
		add_dependencies(${name} ${name}-needed)
		target_link_libraries(${name} PRIVATE -Wl,--no-as-needed
			$<TARGET_FILE:${name}-needed> -Wl,--as-needed)
	endif()
	target_link_libraries(${name} PRIVATE ${arg_LIBRARIES})
	install(TARGETS ${name} LIBRARY DESTINATION ${libraries_dir}/${arg_DESTINATION})
endfunction()

# The linker copies a library's SONAME into DT_NEEDED. An empty library whose SONAME is a path
# creates an entry that ld.so opens as that path, without a search. It is never installed.
function(gpushare_needed name path)
	set(source ${CMAKE_BINARY_DIR}/needed/${name}.c)
	file(CONFIGURE OUTPUT ${source} CONTENT "typedef int an_empty_translation_unit;\n")
	add_library(${name} SHARED ${source})
	set_target_properties(${name} PROPERTIES NO_SONAME ON
		LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/needed)
	target_link_options(${name} PRIVATE LINKER:-soname,${path} -nostdlib)
endfunction()

function(gpushare_test name)
	if(NOT GPUSHARE_TESTS)
		return()
	endif()
	cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "LIBRARIES")
	add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
	target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/libhook/include)
	target_link_libraries(${name} PRIVATE ${arg_LIBRARIES})
	set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
	add_test(NAME ${name} COMMAND ${name})
	if(NOT TARGET gpushare-tests)
		add_custom_target(gpushare-tests)
	endif()
	add_dependencies(gpushare-tests ${name})
	# A hang ends a run at last. The checks have only the time that the tests leave, so that a
	# program of a second takes minutes there.
	set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 1200)
endfunction()
