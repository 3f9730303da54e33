/* SPDX-License-Identifier: Apache-2.0
 *
 * What is read of module images.
 */
#include "image/image.h"
#include "expect.h"

#include <string.h>

#define HEAD ".version 8.0\n.target sm_75\n.address_size 64\n"

static struct image image;

static CUresult read_text(const char *text)
{
	image_free(&image);
	return image_read(&image, text);
}

static const struct kernel *kernel(const char *name)
{
	for (const struct kernel *at = image.kernels; at; at = at->next) {
		if (strcmp(at->name, name) == 0)
			return at;
	}
	return NULL;
}

static void entries_are_kernels_and_functions_are_not(void)
{
	EXPECT_EQUAL(read_text(HEAD ".func helper(.param .b32 x) { ret; }\n"
				    ".visible .entry one() { ret; }\n"
				    ".entry two(.param .u32 n) .maxntid 256, 1, 1 { ret; }\n"),
		CUDA_SUCCESS);
	EXPECT(kernel("one") && kernel("two") && !kernel("helper"));
	EXPECT_EQUAL(kernel("one")->parameter_count, 0);
	EXPECT_EQUAL(kernel("two")->parameter_count, 1);
}

static void parameters_are_laid_out_by_their_alignment(void)
{
	EXPECT_EQUAL(read_text(HEAD ".visible .entry k(.param .u32 a, .param .u64 b,\n"
				    " .param .align 16 .b8 c[20], .param .u8 d) {}\n"),
		CUDA_SUCCESS);
	EXPECT_EQUAL(kernel("k")->parameter_count, 4);
	EXPECT_EQUAL(kernel("k")->parameters[1].offset, 8);
	EXPECT_EQUAL(kernel("k")->parameters[2].offset, 16);
	EXPECT_EQUAL(kernel("k")->parameters[2].bytes, 20);
	EXPECT_EQUAL(kernel("k")->parameters[3].offset, 36);
}

static void only_a_first_u64_named_duration_ns_times_a_kernel(void)
{
	EXPECT_EQUAL(read_text(HEAD ".entry yes(.param .u64 spin_duration_ns) {}\n"
				    ".entry narrow(.param .u32 spin_duration_ns) {}\n"
				    ".entry second(.param .u64 n, .param .u64 duration_ns) {}\n"),
		CUDA_SUCCESS);
	EXPECT(kernel("yes")->timed);
	EXPECT(!kernel("narrow")->timed);
	EXPECT(!kernel("second")->timed);
}

static void bodies_and_comments_and_strings_hide_what_is_in_them(void)
{
	EXPECT_EQUAL(read_text(HEAD "// .entry a() {}\n/* .entry b() {} */\n"
				    ".entry real() { { .reg .b32 %r<2>; } /* } */ }\n"
				    ".file 1 \"x } .entry c() {\"\n.entry last() {}\n"),
		CUDA_SUCCESS);
	EXPECT(kernel("real") && kernel("last"));
	EXPECT(!kernel("a") && !kernel("b") && !kernel("c"));
}

static void variables_have_their_size_and_external_ones_are_not_ours(void)
{
	EXPECT_EQUAL(read_text(HEAD ".visible .global .align 4 .f32 table[256];\n"
				    ".const .align 8 .b8 text[3] = {1, 2, 3};\n"
				    ".extern .global .u64 elsewhere;\n"
				    ".global .v4 .u32 vector;\n"),
		CUDA_SUCCESS);
	for (const struct variable *at = image.variables; at; at = at->next) {
		EXPECT(strcmp(at->name, "elsewhere") != 0);
		if (strcmp(at->name, "table") == 0)
			EXPECT_EQUAL(at->bytes, 1024);
		if (strcmp(at->name, "text") == 0)
			EXPECT_EQUAL(at->bytes, 3);
		if (strcmp(at->name, "vector") == 0)
			EXPECT_EQUAL(at->bytes, 16);
	}
}

static void what_is_no_image_is_refused(void)
{
	const unsigned char elf[64] = {0x7f, 'E', 'L', 'F', 2, 1, 1};
	const uint32_t fat[4] = {0xba55ed50, 0x00100001, 0, 0};

	EXPECT_EQUAL(read_text("hello, world"), CUDA_ERROR_INVALID_IMAGE);
	EXPECT_EQUAL(read_text("    "), CUDA_ERROR_INVALID_IMAGE);
	EXPECT_EQUAL(image_read(&image, elf), CUDA_ERROR_INVALID_IMAGE);
	EXPECT_EQUAL(image_read(&image, fat), CUDA_ERROR_NO_BINARY_FOR_GPU);
	EXPECT_EQUAL(read_text(HEAD ".entry broken(.param .u32 n"), CUDA_ERROR_INVALID_PTX);
}

int main(void)
{
	entries_are_kernels_and_functions_are_not();
	parameters_are_laid_out_by_their_alignment();
	only_a_first_u64_named_duration_ns_times_a_kernel();
	bodies_and_comments_and_strings_hide_what_is_in_them();
	variables_have_their_size_and_external_ones_are_not_ours();
	what_is_no_image_is_refused();
	image_free(&image);
	return 0;
}
