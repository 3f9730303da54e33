/* SPDX-License-Identifier: Apache-2.0 */
#include "args.h"

#include "bundle.h"

#include <stddef.h>
#include <string.h>

enum arity {
	UNKNOWN,
	SWITCH, /* takes no value */
	VALUE,	/* takes one: the next word, or after '=' */
	HELP,	/* whatever else follows, the runtime only prints */
};

struct flag {
	const char *name;
	enum arity arity;
};

/* runc 1.1 to 1.4 and crun 1.8 to 1.2x. A name that both have means the same to both. */
static const struct flag global_flags[] = {{"root", VALUE}, {"log", VALUE}, {"log-format", VALUE},
	{"criu", VALUE}, {"rootless", VALUE}, {"cgroup-manager", VALUE}, {"debug", SWITCH},
	{"systemd-cgroup", SWITCH}, {"help", HELP}, {"h", HELP}, {"?", HELP}, {"usage", HELP},
	{"version", HELP}, {"v", HELP}, {"V", HELP}, {NULL, 0}};

/* Of create, run and restore together. */
static const struct flag create_flags[] = {{"bundle", VALUE}, {"b", VALUE},
	{"console-socket", VALUE}, {"pidfd-socket", VALUE}, {"pid-file", VALUE},
	{"preserve-fds", VALUE}, {"image-path", VALUE}, {"work-path", VALUE},
	{"manage-cgroups-mode", VALUE}, {"empty-ns", VALUE}, {"lsm-profile", VALUE},
	{"lsm-mount-context", VALUE}, {"no-pivot", SWITCH}, {"no-new-keyring", SWITCH},
	{"no-subreaper", SWITCH}, {"detach", SWITCH}, {"d", SWITCH}, {"keep", SWITCH},
	{"tcp-established", SWITCH}, {"ext-unix-sk", SWITCH}, {"shell-job", SWITCH},
	{"file-locks", SWITCH}, {"auto-dedup", SWITCH}, {"lazy-pages", SWITCH},
	{"link-remap", SWITCH}, {"config", VALUE}, {"f", VALUE}, {"help", HELP}, {"h", HELP},
	{"?", HELP}, {"usage", HELP}, {NULL, 0}};

static const struct flag checkpoint_flags[] = {{"image-path", VALUE}, {"work-path", VALUE},
	{"parent-path", VALUE}, {"page-server", VALUE}, {"status-fd", VALUE},
	{"manage-cgroups-mode", VALUE}, {"empty-ns", VALUE}, {"leave-running", SWITCH},
	{"pre-dump", SWITCH}, {"tcp-established", SWITCH}, {"tcp-skip-in-flight", SWITCH},
	{"link-remap", SWITCH}, {"ext-unix-sk", SWITCH}, {"shell-job", SWITCH},
	{"file-locks", SWITCH}, {"auto-dedup", SWITCH}, {"lazy-pages", SWITCH}, {"help", HELP},
	{"h", HELP}, {"?", HELP}, {"usage", HELP}, {NULL, 0}};

/* A flag as it stands in argv. */
struct word {
	const char *name;
	size_t length;
	const char *value; /* after '=', or the next word; NULL: none */
	enum arity arity;
};

static bool is_flag(const char *text)
{
	return text[0] == '-' && text[1] != '\0';
}

/* NULL: there is none of that name. */
static const struct flag *flag_named(const struct flag *flags, const char *name, size_t length)
{
	for (; flags->name; flags++)
		if (strlen(flags->name) == length && memcmp(flags->name, name, length) == 0)
			return flags;
	return NULL;
}

/* The one flag whose name begins so, as getopt_long(3) takes it; NULL: none, or several. */
static const struct flag *flag_begun(const struct flag *flags, const char *name, size_t length)
{
	const struct flag *found = NULL;
	for (; length > 0 && flags->name; flags++) {
		if (strncmp(flags->name, name, length) != 0)
			continue;
		if (found)
			return NULL;
		found = flags;
	}
	return found;
}

/* Letters behind one dash, as crun takes them: `-db/path` is -d and -b with a value. `word` becomes
 * the last of them, which is the only one that may take a value. */
static void word_read_letters(struct word *word, const struct flag *flags, const char *letters)
{
	for (; *letters; letters++) {
		const struct flag *flag = flag_named(flags, letters, 1);
		word->arity = flag ? flag->arity : UNKNOWN;
		word->name = letters;
		word->length = 1;
		if (word->arity == VALUE && letters[1])
			word->value = letters + 1;
		if (word->arity != SWITCH)
			return;
	}
}

/* The flag at `*argv`; moves `*argv` to its last word. What one of the runtimes refuses and the
 * other takes is read as that one does: the container is not made by the first. */
static struct word word_read(char *const **argv, const struct flag *flags)
{
	const char *text = **argv;
	const bool is_long = text[1] == '-';
	struct word word = {.name = text + (is_long ? 2 : 1)};
	const char *equals = strchr(word.name, '=');

	word.length = equals ? (size_t)(equals - word.name) : strlen(word.name);
	word.value = equals ? equals + 1 : NULL;
	const struct flag *flag = flag_named(flags, word.name, word.length);
	if (!flag && is_long)
		flag = flag_begun(flags, word.name, word.length);
	if (flag) {
		word.name = flag->name;
		word.length = strlen(flag->name);
		word.arity = flag->arity;
	} else if (!is_long) {
		word.value = NULL;
		word_read_letters(&word, flags, word.name);
	}
	if (word.arity == VALUE && !word.value && (*argv)[1])
		word.value = *++*argv;
	return word;
}

static bool word_is(const struct word *word, const char *name)
{
	return strlen(name) == word->length && memcmp(name, word->name, word->length) == 0;
}

/* What crun's --config means the daemon does not edit; a container that requests a GPU in it is
 * refused. */
static void take_config(struct args *args, const char *text, const char *value)
{
	args->unknown = text;
	if (value && *value)
		args->config = value;
}

static bool verb_creates(const char *verb)
{
	return strcmp(verb, "create") == 0 || strcmp(verb, "run") == 0 ||
	       strcmp(verb, "restore") == 0;
}

/* The words after create, run, restore or checkpoint. False: help was requested. */
static bool parse_words(struct args *args, const struct flag *flags, char *const *argv)
{
	bool flags_end = false, help = false;
	for (; *argv; argv++) {
		if (flags_end || !is_flag(*argv)) {
			if (!args->id)
				args->id = *argv;
			continue;
		}
		if (strcmp(*argv, "--") == 0) {
			flags_end = true;
			continue;
		}
		const char *text = *argv;
		struct word word = word_read(&argv, flags);
		if (word.arity == HELP)
			help = true;
		else if (word.arity == UNKNOWN)
			args->unknown = text;
		else if (word_is(&word, "bundle") || word_is(&word, "b"))
			args->bundle =
				word.value && *word.value ? word.value : "."; /* runc: "" is cwd */
		else if (word_is(&word, "config") || word_is(&word, "f"))
			take_config(args, text, word.value);
	}
	return !help;
}

void args_parse(struct args *args, char *const *argv)
{
	*args = (struct args){.bundle = ".", .config = BUNDLE_CONFIG};
	if (*argv)
		argv++;
	for (; *argv; argv++) {
		if (strcmp(*argv, "--") == 0) {
			argv++;
			break;
		}
		/* After an unknown flag any word may be its value, so the verb is the next that
		 * creates. */
		if (!is_flag(*argv)) {
			if (!args->unknown || verb_creates(*argv))
				break;
			continue;
		}
		const char *text = *argv;
		struct word word = word_read(&argv, global_flags);
		if (word.arity == HELP)
			return;
		if (word.arity == UNKNOWN)
			args->unknown = text;
		else if (word_is(&word, "log"))
			args->log = word.value;
		else if (word_is(&word, "log-format"))
			args->format = word.value;
	}
	args->verb = *argv;
	if (args->verb && verb_creates(args->verb))
		args->creates = parse_words(args, create_flags, argv + 1);
	else if (args->verb && strcmp(args->verb, "checkpoint") == 0)
		args->checkpoints = parse_words(args, checkpoint_flags, argv + 1);
}
