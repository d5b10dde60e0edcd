/**
 * Refuses an old Node with a clear message. Each entry of the package imports this first: later modules would fail with the
 * name of some function that an old Node lacks. For `engines` npm only warns.
 */
const NODE_MIN = 24;

if (Number(process.versions.node.split('.')[0]) < NODE_MIN) {
  throw new Error(
    `doorbuster needs Node ${NODE_MIN} or newer; this is ${process.version}. Install it: https://nodejs.org/en/download`,
  );
}
