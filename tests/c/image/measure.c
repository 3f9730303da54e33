/* SPDX-License-Identifier: Apache-2.0
 *
 * measure FILE CAPABILITY: what an image declares: globals, managed, constants, code.
 */
#include "image/image.h"

#include <stdio.h>
#include <stdlib.h>

int main(int count, char **arguments)
{
	struct declared_bytes declared;
	size_t bytes;
	char *data = count == 3 ? image_load_file(arguments[1], &bytes) : NULL;

	if (!data)
		return 2;
	CUresult result = image_measure_sized(
		&declared, data, bytes, (unsigned)strtoul(arguments[2], NULL, 10));
	free(data);
	if (result != CUDA_SUCCESS)
		return 1;
	printf("%llu %llu %llu %llu\n", (unsigned long long)declared.globals,
		(unsigned long long)declared.managed, (unsigned long long)declared.constants,
		(unsigned long long)declared.code);
	return 0;
}
