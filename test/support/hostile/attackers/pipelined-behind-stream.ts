import { type Attacker, get } from '../attacker.ts';

/** What the review needed to stop an API of 5 000 requests in flight with three sockets. */
const BEHIND = 1750;
const HOLD_MS = 10_000;

/** An event stream, and behind it on the same socket requests whose answers have to wait for the stream's end. */
export const pipelinedBehindStream: Attacker = {
  name: 'pipelined behind a stream',
  perSecond: 1,
  act(attack) {
    const { saleId } = attack.target;
    const socket = attack.open(get(`/v1/sales/${saleId}/events`), HOLD_MS);
    attack.later(100, () => {
      if (socket.writable) socket.write(get('/v1/time').repeat(BEHIND));
    });
  },
};
