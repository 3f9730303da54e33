/* SPDX-License-Identifier: Apache-2.0 */
#include "insist.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#include "capture.h"
#include "channel/channel.h"
#include "channel/log.h"
#include "quota/pages.h"
#include "quota/usage.h"
#include "share/clock.h"

#define WAIT_NS UINT64_C(2000000000)
/* Where nobody can help: no daemon hears, or a whole wait was in vain a moment ago. A program that
 * tries smaller and smaller sizes must not take two seconds for each. */
#define SHORT_WAIT_NS UINT64_C(250000000)
#define IN_VAIN_NS UINT64_C(10000000000)
#define TELL_AGAIN_NS UINT64_C(300000000)
#define FIRST_PAUSE_NS UINT64_C(1000000)
#define LONGEST_PAUSE_NS UINT64_C(100000000)

static struct lacking {
	_Atomic uint64_t told_ns; /* when the daemon was told last; 0: never */
	_Atomic bool is_unheard;  /* there was none to take it */
	_Atomic uint64_t in_vain_ns;
} lacking[GPUSHARE_MAX_CARDS];

/* With what is reserved for this very call: that is held as long as we wait. */
static bool was_promised(unsigned card)
{
	return usage_of(card) <= atomic_load(&grant_card(card)->memory_bytes);
}

/* Of all that wait for a card, and of all that come soon after, one speaks; and again while they
 * wait: the daemon believes it by the driver's figures, at which it looks only so often. */
static void tell(struct lacking *card, const struct insist *insist, uint64_t now)
{
	uint64_t told = atomic_load(&card->told_ns);

	if ((!told || now - told >= TELL_AGAIN_NS) &&
		atomic_compare_exchange_strong(&card->told_ns, &told, now))
		atomic_store(&card->is_unheard, !channel_lacks(insist->card, insist->bytes));
}

static void begin(struct insist *insist, uint64_t now)
{
	const struct lacking *card = &lacking[insist->card];
	const uint64_t in_vain = atomic_load(&card->in_vain_ns);
	const bool is_hopeless =
		atomic_load(&card->is_unheard) || (in_vain && now - in_vain < IN_VAIN_NS);

	insist->until_ns = now + (is_hopeless ? SHORT_WAIT_NS : WAIT_NS);
	insist->pause_ns = FIRST_PAUSE_NS;
}

static void give_up(const struct insist *insist, uint64_t now)
{
	atomic_store(&lacking[insist->card].in_vain_ns, now);
	log_line(LOG_WARNING, "card %u is full: %llu bytes that were promised could not be had",
		insist->card, (unsigned long long)insist->bytes);
}

/* Not cancelled: what is reserved would stay so. */
static void pause_for(uint64_t ns)
{
	const struct timespec pause = {
		.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
	int saved = errno, cancellation;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancellation);
	nanosleep(&pause, NULL); /* a signal ends it early, and the driver is asked then */
	pthread_setcancelstate(cancellation, NULL);
	errno = saved;
}

bool insist_wait(struct insist *insist)
{
	const uint64_t now = clock_ns();

	if (insist->card >= pages.card_count || captures_are_open() || !was_promised(insist->card))
		return false;
	tell(&lacking[insist->card], insist, now);
	if (!insist->until_ns)
		begin(insist, now);
	if (now >= insist->until_ns) {
		give_up(insist, now);
		return false;
	}
	const uint64_t left = insist->until_ns - now;
	pause_for(insist->pause_ns < left ? insist->pause_ns : left);
	if (insist->pause_ns < LONGEST_PAUSE_NS)
		insist->pause_ns *= 2;
	return !captures_are_open();
}
