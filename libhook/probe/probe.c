/* SPDX-License-Identifier: Apache-2.0
 *
 * gpushare-probe: a CUDA program that executes commands and prints each result as one JSON object a
 * line. `gpushare verify`, the demo and the tests run it inside a container, and the daemon runs it
 * to measure the size of a context. It is an ordinary client: it finds the driver by
 * dlopen("libcuda.so.1") and knows nothing of gpushare.
 *
 *   gpushare-probe [--library FILE] [--card N] [COMMAND ...]     then COMMANDs on stdin, one a line
 *
 * COMMAND:  context | info | alloc [API] SIZE | fill [API] | free | copy SIZE | spin NS TIMES |
 *           busy NS FOR_NS | write SEED | check SEED | smi
 * SIZE is in bytes; API is cuMemAlloc (default) or another of allocation_paths.c. The exit status
 * is 0 unless the driver cannot be loaded (3) or the command line is wrong (2); a refused
 * allocation is a result, not a failure.
 */
#include "probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int usage(void)
{
	fputs("usage: gpushare-probe [--library FILE] [--card N] [COMMAND ...]\n", stderr);
	return 2;
}

/* "alloc cuMemCreate 4096" -> words; at most `most`, further ones are ignored. */
static int words_split(char *line, char **words, int most)
{
	int count = 0;

	for (char *word = strtok(line, " \t\n"); word && count < most; word = strtok(NULL, " \t\n"))
		words[count++] = word;
	return count;
}

static bool number_parse(const char *text, unsigned long long *number)
{
	char *end;

	*number = strtoull(text, &end, 10);
	return end != text && *end == '\0';
}

static bool command_alloc(struct probe *probe, char **words, int count)
{
	const char *api = count == 3 ? words[1] : "cuMemAlloc";
	unsigned long long bytes;

	if (count < 2 || count > 3 || !number_parse(words[count - 1], &bytes))
		return false;
	return memory_alloc(probe, api, (size_t)bytes);
}

/* "spin NS TIMES", "busy NS FOR_NS" */
static bool command_work(struct probe *probe, char **words, int count,
	void (*work)(struct probe *, unsigned long long, unsigned long long))
{
	unsigned long long duration_ns, much;

	if (count != 3 || !number_parse(words[1], &duration_ns) || !number_parse(words[2], &much))
		return false;
	work(probe, duration_ns, much);
	return true;
}

static bool command_copy(struct probe *probe, char **words, int count)
{
	unsigned long long bytes;

	if (count != 2 || !number_parse(words[1], &bytes))
		return false;
	work_copy(probe, (size_t)bytes);
	return true;
}

/* "write SEED", "check SEED" */
static bool command_contents(struct probe *probe, char **words, int count,
	void (*act)(struct probe *, unsigned long long))
{
	unsigned long long seed;

	if (count != 2 || !number_parse(words[1], &seed))
		return false;
	act(probe, seed);
	return true;
}

static bool command_run(struct probe *probe, char *line)
{
	char *words[4];
	int count = words_split(line, words, 4);

	if (count == 0)
		return true;
	if (!strcmp(words[0], "alloc"))
		return command_alloc(probe, words, count);
	if (!strcmp(words[0], "fill"))
		return memory_fill(probe, count > 1 ? words[1] : "cuMemAlloc");
	if (!strcmp(words[0], "copy"))
		return command_copy(probe, words, count);
	if (!strcmp(words[0], "spin"))
		return command_work(probe, words, count, work_spin);
	if (!strcmp(words[0], "busy"))
		return command_work(probe, words, count, work_busy);
	if (!strcmp(words[0], "write"))
		return command_contents(probe, words, count, contents_write);
	if (!strcmp(words[0], "check"))
		return command_contents(probe, words, count, contents_check);
	if (count != 1)
		return false;
	if (!strcmp(words[0], "context"))
		memory_context(probe);
	else if (!strcmp(words[0], "info"))
		memory_info(probe);
	else if (!strcmp(words[0], "free"))
		memory_free_all(probe);
	else if (!strcmp(words[0], "smi"))
		smi_report(probe);
	else
		return false;
	return true;
}

static bool command_run_or_report(struct probe *probe, char *line)
{
	char kept[128];
	bool known;

	snprintf(kept, sizeof kept, "%s", line);
	kept[strcspn(kept, "\"\\\n")] = '\0';
	known = command_run(probe, line);
	if (!known)
		printf("{\"event\":\"error\",\"error\":\"not a command: %s\"}\n", kept);
	fflush(stdout);
	return known;
}

int main(int argc, char **argv)
{
	struct probe probe = {.library = "libcuda.so.1"};
	char line[256];
	int at = 1;

	for (; at + 1 < argc && !strncmp(argv[at], "--", 2); at += 2) {
		if (!strcmp(argv[at], "--library"))
			probe.library = argv[at + 1];
		else if (!strcmp(argv[at], "--card"))
			probe.card = atoi(argv[at + 1]);
		else
			return usage();
	}
	if (at < argc && !strncmp(argv[at], "--", 2))
		return usage();
	if (!driver_open(&probe))
		return 3;
	for (; at < argc; at++) {
		snprintf(line, sizeof line, "%s", argv[at]);
		if (!command_run_or_report(&probe, line))
			return usage();
	}
	while (fgets(line, sizeof line, stdin))
		command_run_or_report(&probe, line);
	return 0;
}
