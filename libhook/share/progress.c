/* SPDX-License-Identifier: Apache-2.0 */
#include "progress.h"

#include "work_account.h"
#include "wakeup.h"
#include "futex.h"
#include "quota/pages.h"

/* Whether threads of the tenant's other processes may be waiting at this gate. */
static bool others_wait(unsigned card)
{
	const unsigned count = process_count();

	for (unsigned number = 0; number < count; number++) {
		const struct gpushare_work *other = card_work(card, number);
		if (other != work_accounts[card].page &&
			atomic_load_explicit(&other->waiting, memory_order_relaxed) > 0)
			return true;
	}
	return false;
}

void progress_report(unsigned card, bool is_idle)
{
	const struct gpushare_gate *gate = &grant_card(card)->gate;

	if (atomic_load(&work_accounts[card].waiting_for_progress) > 0)
		futex_wake_all(&work_accounts[card].progress, FUTEX_OF_PROCESS);
	/* All of them know the gate's word; it need not change for a wake-up. */
	if (process_count() > 1 && others_wait(card))
		futex_wake_all(&gate->epoch, FUTEX_OF_ALL);
	if (is_idle &&
		atomic_load_explicit(&gate->mode, memory_order_relaxed) != GPUSHARE_GATE_OPEN)
		wakeup_send();
}
