/* SPDX-License-Identifier: Apache-2.0
 *
 * What a runc-style command line says to us; everything else of it is the low-level runtime's.
 *
 *	RUNTIME [global flags] VERB [flags and arguments]
 *
 * Read as runc (urfave/cli: one or two dashes, flags and arguments in any order after the verb) and
 * crun (argp: long names may be cut short, letters stand together, a value may be glued on) do.
 * Only create, run, restore and checkpoint are read past the verb: `exec ID create` is an exec.
 */
#ifndef GPUSHARE_RUNTIME_ARGS_H
#define GPUSHARE_RUNTIME_ARGS_H

#include <stdbool.h>

/* All strings are argv's own, NULL for absent. */
struct args {
	const char *verb;
	bool creates;	    /* the verb is create, run or restore, and no help was requested */
	bool checkpoints;   /* the same of checkpoint */
	const char *id;	    /* of the container */
	const char *bundle; /* "." by default */
	const char *config; /* the spec's name in the bundle; crun's --config may be another file */
	const char *log;    /* value of --log */
	const char *format; /* value of --log-format */
	const char *unknown; /* a flag that may or may not take the next word as its value */
};

void args_parse(struct args *args, char *const *argv);

#endif
