/* SPDX-License-Identifier: Apache-2.0 */
#include "injected.h"

#include "json.h"

/* The args of one hook: gpushare-hook STAGE ... --key KEY. */
static bool args_ours(struct json *json)
{
	struct json_text word;
	bool ours = false, keyed = false;
	size_t index = 0;

	if (!json_enter_array(json)) {
		json_skip(json);
		return false;
	}
	for (; json_next_element(json); index++) {
		if (!json_string(json, &word))
			json_skip(json);
		else if (index == 0)
			ours = json_text_is(&word, "gpushare-hook");
		else
			keyed = keyed || json_text_is(&word, "--key");
	}
	return ours && keyed;
}

/* The hooks of one stage. */
static bool stage_injected(struct json *json)
{
	struct json_text key;
	bool found = false;

	if (!json_enter_array(json)) {
		json_skip(json);
		return false;
	}
	while (json_next_element(json)) {
		if (!json_enter_object(json)) {
			json_skip(json);
			continue;
		}
		while (json_next_key(json, &key)) {
			if (json_text_is(&key, "args"))
				found = args_ours(json) || found;
			else
				json_skip(json);
		}
	}
	return found;
}

static bool hooks_injected(struct json *json)
{
	struct json_text key;
	bool found = false;

	if (!json_enter_object(json)) {
		json_skip(json);
		return false;
	}
	while (json_next_key(json, &key)) {
		if (json_text_is(&key, "createRuntime") || json_text_is(&key, "prestart"))
			found = stage_injected(json) || found;
		else
			json_skip(json);
	}
	return found;
}

bool hook_injected(char *text, size_t length)
{
	struct json json;
	struct json_text key;
	bool found = false;

	json_begin(&json, text, length);
	if (!json_enter_object(&json))
		return false;
	while (json_next_key(&json, &key)) {
		if (json_text_is(&key, "hooks"))
			found = hooks_injected(&json) || found;
		else
			json_skip(&json);
	}
	return json_finish(&json) && found;
}
