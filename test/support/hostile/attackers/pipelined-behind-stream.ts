import { type Attacker, get } from '../attacker.ts';

/** With this many per socket, three sockets once filled an API with IN_FLIGHT_MAX=5000. */
const BEHIND = 1750;
const HOLD_MS = 10_000;

/** Opens an event stream, and pipelines requests behind it whose answers have to wait for the end of the stream. */
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
