/* SPDX-License-Identifier: Apache-2.0 */
#include "driver.h"

static const struct result {
	CUresult value;
	uint32_t since;
	const char *name;
	const char *words;
} results[] = {
#define CUDA_RESULT(name, value, since, words) {name, since, #name, words},
#include "table/cuda_result.inc"
#undef CUDA_RESULT
};

/* Null: a driver of the profile's CUDA version does not know the error. */
static const struct result *find(CUresult error)
{
	for (size_t i = 0; i < sizeof(results) / sizeof(*results); i++)
		if (results[i].value == error && results[i].since <= device_cuda_version())
			return &results[i];
	return NULL;
}

CUresult cuGetErrorName(CUresult error, const char **name)
{
	const struct result *result = find(error);

	REQUIRE(name, CUDA_ERROR_INVALID_VALUE);
	*name = result ? result->name : NULL;
	return result ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **words)
{
	const struct result *result = find(error);

	REQUIRE(words, CUDA_ERROR_INVALID_VALUE);
	*words = result ? result->words : NULL;
	return result ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
