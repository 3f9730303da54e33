/* SPDX-License-Identifier: Apache-2.0
 *
 * The just-in-time linker. Nothing is compiled: the output is the input images, PTX concatenated to
 * one text, or the single cubin.
 */
#include "module.h"

#include <stdlib.h>
#include <string.h>

struct CUlinkState_st {
	uint32_t kind;
	char *image; /* NUL-terminated */
	size_t bytes;
	bool cubin;
};

static bool link_valid(CUlinkState state)
{
	return state && state->kind == OBJECT_LINK;
}

CUresult cuLinkCreate_v2(
	unsigned int option_count, CUjit_option *options, void **option_values, CUlinkState *state)
{
	REQUIRE_CONTEXT(context);
	REQUIRE(state, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(option_count == 0 || (options && option_values), CUDA_ERROR_INVALID_VALUE);
	*state = calloc(1, sizeof(**state));
	REQUIRE(*state, CUDA_ERROR_OUT_OF_MEMORY);
	(*state)->kind = OBJECT_LINK;
	return CUDA_SUCCESS;
}

static CUresult append(CUlinkState state, const void *data, size_t bytes)
{
	char *grown = realloc(state->image, state->bytes + bytes + 2);

	REQUIRE(grown, CUDA_ERROR_OUT_OF_MEMORY);
	memcpy(grown + state->bytes, data, bytes);
	state->image = grown;
	state->bytes += bytes;
	if (!state->cubin)
		state->image[state->bytes++] = '\n';
	state->image[state->bytes] = '\0';
	return CUDA_SUCCESS;
}

CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void *data, size_t bytes,
	const char *name, unsigned int option_count, CUjit_option *options, void **option_values)
{
	struct image image = {.kernels = NULL};
	CUresult result;

	(void)name;
	REQUIRE_CONTEXT(context);
	REQUIRE(link_valid(state), CUDA_ERROR_INVALID_HANDLE);
	REQUIRE(data && bytes > 0, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(option_count == 0 || (options && option_values), CUDA_ERROR_INVALID_VALUE);
	if (type == CU_JIT_INPUT_PTX) {
		/* The text's size may or may not include its terminator. */
		return append(state, data, strnlen(data, bytes));
	}
	REQUIRE(type == CU_JIT_INPUT_CUBIN && !state->image, CUDA_ERROR_NOT_SUPPORTED);
	result = image_read(&image, data);
	image_free(&image);
	if (result != CUDA_SUCCESS)
		return result;
	state->cubin = true;
	return append(state, data, bytes);
}

CUresult cuLinkComplete(CUlinkState state, void **cubin, size_t *bytes)
{
	struct image image = {.kernels = NULL};
	CUresult result;

	REQUIRE_CONTEXT(context);
	REQUIRE(link_valid(state), CUDA_ERROR_INVALID_HANDLE);
	REQUIRE(cubin && state->image, CUDA_ERROR_INVALID_VALUE);
	result = image_read(&image, state->image);
	image_free(&image);
	REQUIRE(result == CUDA_SUCCESS, CUDA_ERROR_INVALID_PTX);
	*cubin = state->image;
	if (bytes)
		*bytes = state->bytes + 1;
	return CUDA_SUCCESS;
}

CUresult cuLinkDestroy(CUlinkState state)
{
	REQUIRE_DRIVER();
	REQUIRE(link_valid(state), CUDA_ERROR_INVALID_HANDLE);
	state->kind = 0;
	free(state->image);
	free(state);
	return CUDA_SUCCESS;
}
