/* SPDX-License-Identifier: Apache-2.0 */
#include "oom_retry.h"

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
/* If nothing can help: no daemon receives the report, or a whole wait has just failed. A program
 * that tries smaller and smaller sizes must not wait two seconds for each. */
#define SHORT_WAIT_NS UINT64_C(250000000)
#define FAILED_NS UINT64_C(10000000000)
#define REPORT_AGAIN_NS UINT64_C(300000000)
#define FIRST_PAUSE_NS UINT64_C(1000000)
#define LONGEST_PAUSE_NS UINT64_C(100000000)

static struct shortfall {
	_Atomic uint64_t reported_ns; /* when the shortfall was last reported; 0: never */
	_Atomic bool is_undelivered;  /* there was no daemon to receive it */
	_Atomic uint64_t failed_ns;
} shortfalls[GPUSHARE_MAX_CARDS];

/* Including the reservation for this very call, which is held during the wait. */
static bool is_within_quota(unsigned card)
{
	return counted_bytes(card) <= atomic_load(&grant_card(card)->quota_bytes);
}

/* One of all waiting threads reports, and again during the wait: the daemon verifies the report by
 * the driver's figures, which it samples only periodically. */
static void report_shortfall(struct shortfall *card, const struct oom_retry *retry, uint64_t now)
{
	uint64_t reported = atomic_load(&card->reported_ns);

	if ((!reported || now - reported >= REPORT_AGAIN_NS) &&
		atomic_compare_exchange_strong(&card->reported_ns, &reported, now))
		atomic_store(&card->is_undelivered,
			!channel_report_shortfall(retry->card, retry->bytes));
}

static void begin(struct oom_retry *retry, uint64_t now)
{
	const struct shortfall *card = &shortfalls[retry->card];
	const uint64_t in_vain = atomic_load(&card->failed_ns);
	const bool is_hopeless =
		atomic_load(&card->is_undelivered) || (in_vain && now - in_vain < FAILED_NS);

	retry->until_ns = now + (is_hopeless ? SHORT_WAIT_NS : WAIT_NS);
	retry->pause_ns = FIRST_PAUSE_NS;
}

static void give_up(const struct oom_retry *retry, uint64_t now)
{
	atomic_store(&shortfalls[retry->card].failed_ns, now);
	log_line(LOG_WARNING,
		"card %u is full: could not allocate %llu bytes that are within the quota",
		retry->card, (unsigned long long)retry->bytes);
}

/* Not cancelled: otherwise the reservation would stay. */
static void pause_for(uint64_t ns)
{
	const struct timespec pause = {
		.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
	int saved = errno, cancellation;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancellation);
	nanosleep(&pause, NULL); /* a signal ends it early, and the next retry follows */
	pthread_setcancelstate(cancellation, NULL);
	errno = saved;
}

bool oom_retry_wait(struct oom_retry *retry)
{
	const uint64_t now = clock_ns();

	if (retry->card >= pages.card_count || captures_are_open() || !is_within_quota(retry->card))
		return false;
	report_shortfall(&shortfalls[retry->card], retry, now);
	if (!retry->until_ns)
		begin(retry, now);
	if (now >= retry->until_ns) {
		give_up(retry, now);
		return false;
	}
	const uint64_t left = retry->until_ns - now;
	pause_for(retry->pause_ns < left ? retry->pause_ns : left);
	if (retry->pause_ns < LONGEST_PAUSE_NS)
		retry->pause_ns *= 2;
	return !captures_are_open();
}
