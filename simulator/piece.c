/* SPDX-License-Identifier: Apache-2.0 */
#include "piece.h"

#include <string.h>

#define WORDS (SIM_PROCESSES / 64)

uint64_t piece_number(void)
{
	static _Atomic uint64_t next = 1;

	return atomic_fetch_add(&next, 1);
}

uint64_t process_bytes(const struct sim_card *card, uint32_t process)
{
	uint64_t sum = card->shares[process].used_bytes;

	for (uint32_t i = 0; i < card->pieces_high; i++) {
		const struct sim_piece *piece = &card->pieces[i];

		if (piece->maker != 0 && piece->keeper == process + 1)
			sum += piece->bytes;
	}
	return sum;
}

uint64_t pieces_bytes(const struct sim_card *card)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < card->pieces_high; i++) {
		if (card->pieces[i].maker != 0)
			sum += card->pieces[i].bytes;
	}
	return sum;
}

static struct sim_piece *find(struct sim_card *card, uint64_t maker, uint64_t number)
{
	for (uint32_t i = 0; i < card->pieces_high; i++) {
		if (card->pieces[i].maker == maker && card->pieces[i].number == number)
			return &card->pieces[i];
	}
	return NULL;
}

/* On this process's account. The field that makes it valid is written last. */
static struct sim_piece *piece_new(
	struct sim_card *card, uint64_t maker, uint64_t number, uint64_t bytes)
{
	uint32_t own = tag_process(process_tag()), place = 0;
	struct sim_piece *piece;

	while (place < SIM_PIECES && card->pieces[place].maker != 0)
		place++;
	if (place == SIM_PIECES)
		return NULL;
	piece = &card->pieces[place];
	*piece = (struct sim_piece){.number = number, .bytes = bytes, .keeper = own + 1};
	piece->holders[own / 64] = UINT64_C(1) << own % 64;
	if (card->pieces_high <= place)
		card->pieces_high = place + 1;
	atomic_signal_fence(memory_order_seq_cst);
	piece->maker = maker;
	return piece;
}

bool piece_share(struct sim_card *card, uint64_t number, uint64_t bytes)
{
	if (!piece_new(card, process_tag(), number, bytes))
		return false;
	card->shares[tag_process(process_tag())].used_bytes -= bytes;
	return true;
}

bool piece_hold(struct sim_card *card, uint64_t maker, uint64_t number, uint64_t bytes)
{
	uint32_t own = tag_process(process_tag());
	struct sim_piece *piece;

	card_reap(card); /* a dead creator keeps nothing */
	piece = find(card, maker, number);
	if (piece) {
		piece->holders[own / 64] |= UINT64_C(1) << own % 64;
		return true;
	}
	if (!card_has_room(card, bytes) || !piece_new(card, maker, number, bytes))
		return false;
	atomic_fetch_add(&card->used_bytes, bytes);
	return true;
}

/* Remove one holder; returns the bytes that have no holder any more. The keeper is changed before
 * the old one stops being a holder: if it dies between the two, its death is still handled. */
static uint64_t leave(struct sim_piece *piece, uint32_t process)
{
	uint64_t bit = UINT64_C(1) << process % 64;

	for (uint32_t i = 0; i < WORDS; i++) {
		uint64_t others = piece->holders[i] & ~(i == process / 64 ? bit : 0);

		if (others == 0)
			continue;
		if (piece->keeper == process + 1)
			piece->keeper = i * 64 + (uint32_t)__builtin_ctzll(others) + 1;
		atomic_signal_fence(memory_order_seq_cst);
		piece->holders[process / 64] &= ~bit;
		return 0;
	}
	piece->maker = 0;
	return piece->bytes;
}

void piece_drop(struct sim_card *card, uint64_t maker, uint64_t number)
{
	struct sim_piece *piece = find(card, maker, number);

	if (piece)
		atomic_fetch_sub(&card->used_bytes, leave(piece, tag_process(process_tag())));
}

void pieces_holders(const struct sim_card *card, uint64_t holders[SIM_PROCESSES / 64])
{
	memset(holders, 0, WORDS * sizeof(*holders));
	for (uint32_t i = 0; i < card->pieces_high; i++) {
		for (uint32_t j = 0; card->pieces[i].maker != 0 && j < WORDS; j++)
			holders[j] |= card->pieces[i].holders[j];
	}
}

void pieces_forget(struct sim_card *card, uint32_t process)
{
	for (uint32_t i = 0; i < card->pieces_high; i++) {
		struct sim_piece *piece = &card->pieces[i];

		if (piece->maker != 0 && piece->holders[process / 64] >> process % 64 & 1)
			leave(piece, process);
	}
	while (card->pieces_high > 0 && card->pieces[card->pieces_high - 1].maker == 0)
		card->pieces_high--;
}
