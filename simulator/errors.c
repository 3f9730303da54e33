/* SPDX-License-Identifier: Apache-2.0 */
#include "driver.h"

static const struct {
	CUresult value;
	const char *name;
	const char *words;
} results[] = {
#define CUDA_RESULT(name, value, words) {name, #name, words},
#include "table/cuda_result.inc"
#undef CUDA_RESULT
};

CUresult cuGetErrorName(CUresult error, const char **name)
{
	REQUIRE(name, CUDA_ERROR_INVALID_VALUE);
	*name = NULL;
	for (size_t i = 0; i < sizeof(results) / sizeof(*results); i++) {
		if (results[i].value == error)
			*name = results[i].name;
	}
	return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **words)
{
	REQUIRE(words, CUDA_ERROR_INVALID_VALUE);
	*words = NULL;
	for (size_t i = 0; i < sizeof(results) / sizeof(*results); i++) {
		if (results[i].value == error)
			*words = results[i].words;
	}
	return *words ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
