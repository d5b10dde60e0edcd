/** True for `npm run test:long`: every fault on every database, larger crowds, longer stops. */
export const LONG = process.env.DOORBUSTER_TEST_LONG !== undefined;
