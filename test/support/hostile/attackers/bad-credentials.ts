import { type Attacker, ORDER } from '../attacker.ts';

const PADDED = JSON.stringify({ item: 'voucher', quantity: 1, note: 'x'.repeat(4000) });
const NEWS = JSON.stringify({
  id: 'n',
  type: 'payment.captured',
  orderId: '1',
  reference: 'r',
  note: 'x'.repeat(4000),
});
const TOKENS = [undefined, 'nonsense', 'eyJhbGciOiJub25lIn0.eyJzdWIiOiJldmUifQ.', `${'a'.repeat(3000)}.b.c`];

/** Sends no token, bad tokens and bad signatures, all with a body. */
export const badCredentials: Attacker = {
  name: 'bad tokens and signatures',
  perSecond: 120,
  act(attack, n) {
    if (n % 4 === 3) {
      const signature = n % 8 === 3 ? 't=1,v1=00' : `t=${Math.floor(Date.now() / 1000)},v1=${'0'.repeat(64)}`;
      const headers = { 'doorbuster-signature': signature };
      void attack.ask('POST', '/v1/webhooks/payments/sandbox', { body: NEWS, headers });
      return;
    }
    const bearer = TOKENS[n % TOKENS.length];
    const body = n % 2 === 0 ? PADDED : ORDER;
    void attack.ask('POST', `/v1/sales/${attack.target.saleId}/orders`, {
      body,
      ...(bearer !== undefined && { bearer }),
    });
  },
};
