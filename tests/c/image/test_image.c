/* SPDX-License-Identifier: Apache-2.0
 *
 * What is read of module images.
 */
#include "image/image.h"
#include "expect.h"
#include "made.h"

#include <string.h>

#define HEAD PTX_HEAD

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

static void bodies_and_comments_and_strings_hide_what_is_in_them(void)
{
	EXPECT_EQUAL(read_text(HEAD "// .entry a() {}\n/* .entry b() {} */\n"
				    ".entry real() { { .reg .b32 %r<2>; } /* } */ }\n"
				    ".file 1 \"x } .entry c() {\"\n.entry last() {}\n"),
		CUDA_SUCCESS);
	EXPECT(kernel("real") && kernel("last"));
	EXPECT(!kernel("a") && !kernel("b") && !kernel("c"));
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

static void an_initialiser_says_how_many_there_are_where_no_dimension_does(void)
{
	EXPECT_EQUAL(read_text(HEAD ".global .u32 some[] = {1, 2, 3};\n"
				    ".global .u8 many[0x10];\n"),
		CUDA_SUCCESS);
	EXPECT_EQUAL(image.declared.globals, 12 + 16);
}

static void what_is_declared_is_told_by_its_space(void)
{
	EXPECT_EQUAL(read_text(HEAD ".global .b8 table[4000];\n.const .f32 factors[100];\n"
				    ".global .attribute(.managed) .align 8 .b8 both[616];\n"
				    ".extern .global .b8 elsewhere[1000];\n"
				    ".entry k() { .shared .b8 s[4096]; ret; }\n"),
		CUDA_SUCCESS);
	EXPECT_EQUAL(image.declared.globals, 4000);
	EXPECT_EQUAL(image.declared.constants, 400);
	EXPECT_EQUAL(image.declared.managed, 616);
	EXPECT_EQUAL(image.declared.code, 0);
}

static void sizes_that_do_not_fit_are_the_greatest(void)
{
	EXPECT_EQUAL(read_text(HEAD ".global .b64 huge[4294967295][4294967295];\n.global .b8 x;\n"),
		CUDA_SUCCESS);
	EXPECT(image.declared.globals == UINT64_MAX);
}

static unsigned char made[MADE_BYTES];

static void expect_declared(const struct declared_bytes *declared, uint64_t scale)
{
	EXPECT_EQUAL(declared->globals, MADE_GLOBALS * scale);
	EXPECT_EQUAL(declared->managed, MADE_MANAGED);
	EXPECT_EQUAL(declared->constants, MADE_CONSTANTS);
	EXPECT_EQUAL(declared->code, MADE_CODE);
}

static void a_cubin_declares_by_its_sections(void)
{
	struct declared_bytes declared;
	size_t bytes = made_cubin(made, 1);

	image_free(&image);
	EXPECT_EQUAL(image_read_sized(&image, made, bytes), CUDA_SUCCESS);
	expect_declared(&image.declared, 1);
	EXPECT_EQUAL(kernel("k")->parameter_count, 2);
	EXPECT_EQUAL(kernel("k")->parameters[1].offset, 8);
	EXPECT_EQUAL(kernel("k")->parameters[1].bytes, 4);
	for (const struct variable *at = image.variables; at; at = at->next)
		EXPECT_EQUAL(at->managed, strcmp(at->name, "shared") == 0);
	EXPECT_EQUAL(image_measure(&declared, made, 90), CUDA_SUCCESS);
	expect_declared(&declared, 1);
}

static void of_a_fat_binary_the_largest_entry_that_the_card_can_run_is_measured(void)
{
	static unsigned char small[MADE_BYTES], large[MADE_BYTES];
	const char ptx[] = HEAD ".global .b8 table[1048576];\n";
	const struct made_entry entries[] = {
		{MADE_CUBIN, 75, small, made_cubin(small, 2), 0, 0},
		{MADE_CUBIN, 90, large, made_cubin(large, 9), 0, 0},
		{MADE_CUBIN, 86, large, 8, MADE_COMPRESSED, 777777},
		{MADE_PTX, 89, ptx, sizeof(ptx), 0, 0},
	};
	struct declared_bytes declared;

	made_fatbin(made, entries, 4);
	EXPECT_EQUAL(image_measure(&declared, made, 75), CUDA_SUCCESS);
	expect_declared(&declared, 2);
	EXPECT_EQUAL(image_measure(&declared, made, 86), CUDA_SUCCESS);
	EXPECT_EQUAL(declared.code, 777777);
	EXPECT_EQUAL(declared.globals, 0);
	EXPECT_EQUAL(image_measure(&declared, made, 90), CUDA_SUCCESS);
	EXPECT_EQUAL(declared.globals, 1048576);
	EXPECT_EQUAL(image_measure(&declared, made, 70), CUDA_ERROR_NO_BINARY_FOR_GPU);
	EXPECT_EQUAL(declared.globals, 0);
}

static void a_wrapper_leads_to_its_fat_binary(void)
{
	static unsigned char cubin[MADE_BYTES];
	const struct made_entry entry = {MADE_CUBIN, 75, cubin, made_cubin(cubin, 1), 0, 0};
	struct {
		uint32_t magic, version;
		const void *data, *file;
	} wrapper = {0x466243b1, 1, made, NULL};
	struct declared_bytes declared;

	made_fatbin(made, &entry, 1);
	EXPECT_EQUAL(image_measure(&declared, &wrapper, 75), CUDA_SUCCESS);
	expect_declared(&declared, 1);
	wrapper.data = (const void *)(uintptr_t)4096;
	EXPECT_EQUAL(image_measure(&declared, &wrapper, 75), CUDA_ERROR_INVALID_IMAGE);
}

int main(void)
{
	an_initialiser_says_how_many_there_are_where_no_dimension_does();
	what_is_declared_is_told_by_its_space();
	sizes_that_do_not_fit_are_the_greatest();
	a_cubin_declares_by_its_sections();
	of_a_fat_binary_the_largest_entry_that_the_card_can_run_is_measured();
	a_wrapper_leads_to_its_fat_binary();
	bodies_and_comments_and_strings_hide_what_is_in_them();
	what_is_no_image_is_refused();
	image_free(&image);
	return 0;
}
