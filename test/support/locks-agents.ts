import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import type { LocksOptions } from '../../src/locks/index.ts';
import type { AgentAnswer, Look } from './locks-agent.ts';
import type { LockName } from './locks-names.ts';
import { forget, remember, type Started } from './servers/clean-up.ts';

export interface AgentOptions extends Pick<LocksOptions, 'prefix' | 'lease' | 'handOverMs' | 'commandMs' | 'outageMs'> {
  /** Of the server itself, for what the agent looks at beside its locks. */
  port: number;
  /** Where its locks go: the server, if nothing is said. */
  redis?: string;
}

/** An error that the agent answered with. */
export class AgentError extends Error {
  readonly code: string;
  readonly reason: string | undefined;

  constructor({ code, message, reason }: NonNullable<AgentAnswer['error']>) {
    super(message);
    this.code = code;
    this.reason = reason;
  }
}

const rejections: string[] = [];

/** Promises that were rejected in an agent without anybody listening; forgotten when they were asked for. */
export function agentRejections(): string[] {
  return rejections.splice(0);
}

/** A process that takes locks, and can be killed and stopped. cleanUpServers ends it. */
export class Agent implements Started, AsyncDisposable {
  readonly #process: ChildProcess;
  readonly #open = new Map<number, { resolve(value: unknown): void; reject(error: unknown): void }>();
  #next = 0;

  constructor(child: ChildProcess) {
    this.#process = child;
    child.on('message', (message: AgentAnswer | { rejection: string }) => {
      if ('rejection' in message) {
        rejections.push(message.rejection);
        return;
      }
      const call = this.#open.get(message.id);
      this.#open.delete(message.id);
      if (message.error) call?.reject(new AgentError(message.error));
      else call?.resolve(message.value);
    });
    child.on('exit', () => {
      forget(this);
      for (const { reject } of this.#open.values()) reject(new Error('the agent is gone'));
    });
    remember(this);
  }

  get pid(): number {
    return this.#process.pid!;
  }

  call(op: string, args: object = {}): Promise<unknown> {
    const id = ++this.#next;
    const answer = new Promise<unknown>((resolve, reject) => this.#open.set(id, { resolve, reject }));
    // Of an agent that is killed, nobody may listen any more.
    answer.catch(() => undefined);
    this.#process.send({ id, op, args });
    return answer;
  }

  /** The grant's token. */
  acquire(as: string, lock: LockName, options: object = {}): Promise<bigint> {
    const token = this.call('acquire', { as, lock, options }).then((text) => BigInt(text as string));
    token.catch(() => undefined);
    return token;
  }

  async release(as: string): Promise<void> {
    await this.call('release', { as });
  }

  async look(as: string): Promise<Look> {
    return (await this.call('look', { as })) as Look;
  }

  async kill(): Promise<void> {
    await this.end();
  }

  stop(): void {
    this.#process.kill('SIGSTOP');
  }

  continue(): void {
    this.#process.kill('SIGCONT');
  }

  async end(): Promise<void> {
    forget(this);
    if (this.#process.exitCode !== null || this.#process.signalCode !== null) return;
    const gone = once(this.#process, 'exit');
    this.endNow();
    await gone;
  }

  endNow(): void {
    this.#process.kill('SIGKILL');
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.end();
  }
}

export async function startAgent({ port, ...options }: AgentOptions): Promise<Agent> {
  const file = fileURLToPath(new URL('./locks-agent.ts', import.meta.url));
  // Not vitest's own arguments: the agent is plain Node.
  const agent = new Agent(fork(file, { execArgv: [] }));
  await agent.call('open', { port, options: { redis: `redis://127.0.0.1:${port}`, ...options } });
  return agent;
}
