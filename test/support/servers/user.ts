import { readFileSync, statSync } from 'node:fs';
import { dirname } from 'node:path';

export interface User {
  name: string;
  uid: number;
  gid: number;
}

/** For servers that refuse to run as root: the first of these that the machine has. Null if we are not root. */
export function ordinaryUser(names: readonly string[]): User | null {
  if (process.getuid?.() !== 0) return null;
  const lines = readFileSync('/etc/passwd', 'utf8').split('\n');
  for (const name of names) {
    const line = lines.find((one) => one.startsWith(`${name}:`));
    if (line === undefined) continue;
    const [, , uid, gid] = line.split(':');
    return { name, uid: Number(uid), gid: Number(gid) };
  }
  throw new Error(`we are root, and there is none of the users ${names.join(', ')} to run a server as`);
}

/** Throws if the user may not enter a parent folder: the server's own message would be about a file that exists. */
export function assertReachable(folder: string, user: User): void {
  for (let above = dirname(folder); ; above = dirname(above)) {
    const { mode, uid, gid } = statSync(above);
    const bit = uid === user.uid ? 0o100 : gid === user.gid ? 0o010 : 0o001;
    if ((mode & bit) === 0) {
      throw new Error(`${user.name} may not enter ${above}: set TMPDIR to a folder that everybody may enter`);
    }
    if (above === dirname(above)) return;
  }
}
