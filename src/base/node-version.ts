/**
 * Refuses an old Node in a sentence. Each entry of the package imports this first: what is evaluated later would fail with the
 * name of some function that this Node lacks. npm only warns of `engines`.
 */
const NODE_MIN = 24;

if (Number(process.versions.node.split('.')[0]) < NODE_MIN) {
  throw new Error(
    `doorbuster needs Node ${NODE_MIN} or newer; this is ${process.version}. Install it: https://nodejs.org/en/download`,
  );
}
