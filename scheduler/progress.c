/* SPDX-License-Identifier: Apache-2.0 */
#include "progress.h"

int64_t progress_left(const struct card *card, const struct tenant *tenant)
{
	if (!is_busy(tenant) || tenant->gate.hung)
		return 0;
	return most(
		(int64_t)tenant->seen.pending_ns - elapsed(tenant->progress_ns, card->now_ns), 0);
}

/* Twice the estimate; in a gang's window, also the time that it may wait for its counterpart on
 * another card. */
int64_t progress_grace(const struct card *card, const struct tenant *tenant)
{
	const int64_t pending_ns = (int64_t)tenant->seen.pending_ns;
	const int64_t again_ns =
		least(most(pending_ns, GRACE_LEAST * card->time_scale), OVERRUN * card->time_scale);
	const int64_t counterpart_ns =
		tenant->elsewhere && !card->closing ? GANG_PATIENCE * card->time_scale : 0;

	return pending_ns + again_ns + counterpart_ns - elapsed(tenant->progress_ns, card->now_ns);
}

bool progress_is_stuck(const struct card *card, const struct tenant *tenant)
{
	return is_busy(tenant) && !tenant->gate.hung && progress_grace(card, tenant) <= 0;
}

/* Long work may take long, multiplied by the time slices that the hardware may give to others; and
 * so may a queue of work that passed an open gate, which is unknown until it finishes. */
static int64_t endless_in(const struct card *card, const struct tenant *tenant)
{
	const int64_t turns = least(card->registered, TURNS_MOST);
	const int64_t bound_ns = HUNG * card->time_scale + (int64_t)tenant->seen.pending_ns * turns;
	const int64_t left_ns = bound_ns - elapsed(tenant->progress_ns, card->now_ns);
	const int64_t queue_ns =
		UNCOUNTED * card->time_scale - elapsed(tenant->open_ns, card->now_ns);

	return tenant->open_ns ? most(left_ns, queue_ns) : left_ns;
}

void progress_find_hung(struct card *card)
{
	FOR_EACH_TENANT (card, tenant) {
		const int64_t left_ns = endless_in(card, tenant);

		tenant->gate.hung = is_busy(tenant) && left_ns < 0;
		if (is_busy(tenant) && !tenant->gate.hung)
			look_in(card, left_ns + 1);
	}
}
