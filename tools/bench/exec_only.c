/* SPDX-License-Identifier: Apache-2.0
 *
 * The least that a program in front of runc can cost: exec it, and nothing else.
 */
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	(void)argc;
	execv(RUNTIME, argv);
	perror(RUNTIME);
	return 1;
}
