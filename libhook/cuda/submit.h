/* SPDX-License-Identifier: Apache-2.0
 *
 * A function that starts work on a card:
 *
 *     SUBMIT(cuMemcpy, NULL_IS_LEGACY, (CUdeviceptr to, CUdeviceptr from, size_t bytes),
 *             (to, from, bytes), .kind = GATE_COPY, .size = bytes)
 *
 * is a look at one word and a jump to the driver's while the gate is open. Else it enters and
 * leaves the gate with a struct gate_work of what the last arguments say, unless the stream is
 * captured.
 */
#ifndef GPUSHARE_SUBMIT_H
#define GPUSHARE_SUBMIT_H

#include "filter.h"
#include "share/gate.h"
#include "stream.h"
#include "trampoline.h"

/* gate_enter, of a stream that is not captured, for the card that the stream works on. */
bool submit_enter(struct gate_work *work);

/* After it, with what it returned. Returns `result`. */
static inline CUresult submit_leave(struct gate_work *work, bool counted, CUresult result)
{
	if (counted)
		gate_leave(work, result == CUDA_SUCCESS);
	return result;
}

/* The same of a call that has waited for its work: as after any wait, what has ended is looked for
 * at once. Else the program's next call would find it pending. */
CUresult submit_leave_waited(struct gate_work *work, bool counted, CUresult result);

/* What the program calls is a jump to the driver's function or to symbol_gated, with registers and
 * stack as the caller left them: an open gate costs no copy of the arguments. */
#define SUBMIT_WITH(leave, symbol, null_stream, parameters, arguments, ...)                        \
	__attribute__((visibility("hidden"))) CUresult symbol##_gated parameters;                  \
	CUresult symbol##_gated parameters                                                         \
	{                                                                                          \
		struct gate_work work = {                                                          \
			.per_thread = (null_stream) == NULL_IS_PER_THREAD, __VA_ARGS__};           \
		const bool counted = submit_enter(&work);                                          \
		return leave(&work, counted, REAL(symbol) arguments);                              \
	}                                                                                          \
	GATE_TRAMPOLINE(symbol)

#define SUBMIT(symbol, null_stream, parameters, arguments, ...)                                    \
	SUBMIT_WITH(submit_leave, symbol, null_stream, parameters, arguments, __VA_ARGS__)

/* With the form that means the calling thread's default stream. */
#define SUBMIT_PTSZ(name, parameters, arguments, ...)                                              \
	SUBMIT(name, NULL_IS_LEGACY, parameters, arguments, __VA_ARGS__)                           \
	SUBMIT(name##_ptsz, NULL_IS_PER_THREAD, parameters, arguments, __VA_ARGS__)

/* The same of a function that takes no stream: its work is the default one's. */
#define SUBMIT_PTDS(name, parameters, arguments, ...)                                              \
	SUBMIT(name, NULL_IS_LEGACY, parameters, arguments, __VA_ARGS__)                           \
	SUBMIT(name##_ptds, NULL_IS_PER_THREAD, parameters, arguments, __VA_ARGS__)

/* And one that returns when its work has ended. */
#define SUBMIT_PTDS_WAITED(name, parameters, arguments, ...)                                       \
	SUBMIT_WITH(submit_leave_waited, name, NULL_IS_LEGACY, parameters, arguments, __VA_ARGS__) \
	SUBMIT_WITH(submit_leave_waited, name##_ptds, NULL_IS_PER_THREAD, parameters, arguments,   \
		__VA_ARGS__)

#endif
