/* SPDX-License-Identifier: Apache-2.0
 *
 * The cards of this process and their order: all that it has nodes of, or those of them that
 * CUDA_VISIBLE_DEVICES names (CUDA programming guide, environment variables). Of a partitioned card
 * a process can have one instance, and then it has no other device (MIG user guide, CUDA device
 * enumeration).
 */
#include "mps.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_BYTES 96

static struct sim_card *visible[SIM_CARDS];
static uint32_t visible_count;
/* What an MPS server offers, in its order; none: everything is offered. */
static uint32_t offered[SIM_CARDS];
static uint32_t offered_count;

static bool is_offered(uint32_t index)
{
	for (uint32_t i = 0; i < offered_count; i++) {
		if (offered[i] == index)
			return true;
	}
	return offered_count == 0;
}

static const struct sim_profile *profile(uint32_t index)
{
	return &device->profiles[index];
}

static bool partitioned(uint32_t index)
{
	for (uint32_t i = 0; i < device_entries(); i++) {
		if (profile(i)->parent == index + 1)
			return true;
	}
	return false;
}

/* A card, or a partitioned one's first instance that this process has. SIM_CARDS if none. */
static uint32_t device_of_card(uint32_t card)
{
	for (uint32_t i = 0; i < device_entries(); i++) {
		if (profile(i)->parent == card + 1 && device_has_node(i))
			return i;
	}
	return partitioned(card) ? SIM_CARDS : card;
}

/* The entry of an ordinal among the cards that have nodes, or that the server offers. SIM_CARDS if
 * none. */
static uint32_t by_ordinal(uint32_t ordinal)
{
	if (offered_count > 0)
		return ordinal < offered_count ? offered[ordinal] : SIM_CARDS;
	for (uint32_t i = 0; i < device->header.card_count; i++) {
		if (device_has_node(i) && ordinal-- == 0)
			return device_of_card(i);
	}
	return SIM_CARDS;
}

/* A UUID may be abbreviated, as long as exactly one device begins with it. */
static uint32_t by_uuid(const char *name)
{
	uint32_t found = SIM_CARDS;

	for (uint32_t i = 0; i < device_entries(); i++) {
		char text[48];

		profile_uuid(profile(i), text);
		if (strncmp(text, name, strlen(name)) != 0 || partitioned(i) ||
			!device_has_node(i) || !is_offered(i))
			continue;
		if (found != SIM_CARDS)
			return SIM_CARDS;
		found = i;
	}
	return found;
}

/* "MIG-GPU-<uuid>/<gpu instance>/<compute instance>", as before driver 470. */
static uint32_t by_instance(const char *name)
{
	unsigned int gpu, compute;
	char card[48], text[48];

	if (sscanf(name, "MIG-%47[^/]/%u/%u", card, &gpu, &compute) != 3)
		return SIM_CARDS;
	for (uint32_t i = 0; i < device_entries(); i++) {
		if (profile(i)->parent == 0 || !device_has_node(i))
			continue;
		profile_uuid(profile(profile(i)->parent - 1), text);
		if (strcmp(text, card) == 0 && profile(i)->gpu_instance == gpu &&
			profile(i)->compute_instance == compute)
			return i;
	}
	return SIM_CARDS;
}

static uint32_t by_name(const char *name)
{
	if (isdigit((unsigned char)name[0]))
		return by_ordinal((uint32_t)strtoul(name, NULL, 10));
	if (strncmp(name, "MIG-GPU-", 8) == 0)
		return by_instance(name);
	if (strncmp(name, "GPU-", 4) == 0 || strncmp(name, "MIG-", 4) == 0)
		return by_uuid(name);
	return SIM_CARDS;
}

/* False if the device is one too many: after an instance comes no other, nor one after a card. */
static bool add(uint32_t index)
{
	if (visible_count > 0 &&
		(profile(index)->parent != 0 || card_profile(visible[0])->parent != 0))
		return false;
	visible[visible_count++] = &device->cards[index];
	return true;
}

/* Up to the first wrong name. A duplicate makes the whole list invalid. */
static void add_named(const char *names)
{
	char name[NAME_BYTES];

	while (visible_count < SIM_CARDS) {
		size_t length = strcspn(names, ",");
		uint32_t index;

		while (length > 0 && isspace((unsigned char)*names)) {
			names++;
			length--;
		}
		if (length == 0 || length >= sizeof(name))
			return;
		snprintf(name, sizeof(name), "%.*s", (int)length, names);
		index = by_name(name);
		if (index == SIM_CARDS)
			return;
		if (device_ordinal(&device->cards[index]) >= 0) {
			visible_count = 0;
			return;
		}
		if (!add(index) || names[length] == '\0')
			return;
		names += length + 1;
	}
}

void devices_find(void)
{
	const char *names = getenv("CUDA_VISIBLE_DEVICES");

	visible_count = offered_count = 0;
	if (mps_devices()) {
		add_named(mps_devices());
		for (uint32_t i = 0; i < visible_count; i++)
			offered[i] = (uint32_t)(visible[i] - device->cards);
		offered_count = visible_count;
		if (!names || offered_count == 0)
			return;
		visible_count = 0;
	}
	if (names) {
		add_named(names);
		return;
	}
	for (uint32_t i = 0; i < device->header.card_count; i++) {
		if (!partitioned(i) && device_has_node(i))
			add(i);
	}
	for (uint32_t i = 0; visible_count == 0 && i < device->header.card_count; i++) {
		if (device_has_node(i) && device_of_card(i) != SIM_CARDS)
			add(device_of_card(i));
	}
}

uint32_t device_count(void)
{
	return visible_count;
}

bool device_valid(CUdevice ordinal)
{
	return ordinal >= 0 && ordinal < (int)visible_count;
}

struct sim_card *device_card(CUdevice ordinal)
{
	return visible[ordinal];
}

CUdevice device_ordinal(const struct sim_card *card)
{
	for (uint32_t i = 0; i < visible_count; i++) {
		if (visible[i] == card)
			return (CUdevice)i;
	}
	return -1;
}
