import { execFileSync } from 'node:child_process';
import { closeSync, openSync, rmSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { type TestServer, temporaryFolder } from './server.ts';

/** A disk that can be filled and freed while a server runs on it. */
export interface FaultDisk {
  /** The data folder. */
  folder: string;
  /** For a server that starts on the full disk. */
  under: string[];
  /** `server`: needed if the limit belongs to its process. */
  fill(server?: TestServer): void;
  free(server?: TestServer): void;
}

const mounts = new Set<string>();

/** Call it before cleanUp, because a mounted folder cannot be removed. */
export function unmountDisks(): void {
  for (const folder of mounts) execFileSync('umount', ['-l', folder]);
  mounts.clear();
}

/** A small file system of its own. Null if this machine does not let us mount one. */
export function tmpfsDisk(megabytes: number): (FaultDisk & { leave(bytes: number): void }) | null {
  const folder = temporaryFolder();
  try {
    execFileSync('mount', ['-t', 'tmpfs', '-o', `size=${megabytes}m`, 'tmpfs', folder], { stdio: 'pipe' });
  } catch {
    return null;
  }
  mounts.add(folder);
  const ballast = join(folder, 'ballast');
  const free = (): void => rmSync(ballast, { force: true });
  const leave = (bytes: number): void => {
    free();
    const gap = join(folder, 'gap');
    if (bytes > 0) fillWith(gap, bytes);
    fillWith(ballast, Number.POSITIVE_INFINITY);
    rmSync(gap, { force: true });
  };
  return { folder: join(folder, 'data'), under: [], fill: () => leave(0), free, leave };
}

/** Writes `bytes` bytes, or until nothing more fits. */
function fillWith(file: string, bytes: number): void {
  const block = Buffer.alloc(4096, 1);
  const open = openSync(file, 'a');
  try {
    for (let written = 0; written < bytes; written += block.length) writeSync(open, block);
  } catch (error) {
    if ((error as { code?: string }).code !== 'ENOSPC') throw error;
  } finally {
    closeSync(open);
  }
}

/** The largest file that the server may write, like `ulimit -f`, but changed while it runs. */
const FILE_BYTES_MAX = 64 * 1024;

export function fileSizeLimit(): FaultDisk {
  const set = (limit: string, server?: TestServer): void => {
    if (server) execFileSync('prlimit', ['--pid', String(server.process.pid), `--fsize=${limit}:unlimited`]);
  };
  return {
    folder: join(temporaryFolder(), 'data'),
    under: ['prlimit', '--fsize=0:unlimited'],
    fill: (server) => set(String(FILE_BYTES_MAX), server),
    free: (server) => set('unlimited', server),
  };
}
