import { spawnSync } from 'node:child_process';
import { randomInt } from 'node:crypto';
import { cpSync, existsSync, mkdirSync, mkdtempSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { ROOT } from '../server.ts';
import { fromApt, whyNoApt } from './apt.ts';
import type { Source } from './install.ts';
import { javaArgs, kafkaProperties, PARTS } from './kafka-java.ts';
import { programPath } from './program.ts';

/** A version that runs on Java 17. */
const VERSION = '4.1.1';
const POM = fileURLToPath(new URL('kafka/pom.xml', import.meta.url));
const FETCH_WITHIN_MS = 120_000;
const FORMAT_WITHIN_MS = 60_000;

/** Kafka's folder, or null. It needs Java. */
export function findKafka(): string | null {
  const folder = cacheFolder();
  return programPath('java') !== null && existsSync(folder) ? folder : null;
}

/** Outside of the repository, shared by all clones and runs. */
function cacheFolder(): string {
  return join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'doorbuster-tests', `kafka-${VERSION}`);
}

/** Installs Kafka from Maven's registry, and Java and Maven by apt-get if they are missing. */
export function fromMaven(): Source {
  return {
    words: `kafka ${VERSION} with Maven`,
    whyNot: () => {
      const missing = missingTools();
      const why = missing.length === 0 ? null : whyNoApt();
      return why === null ? null : `${missing.map(({ program }) => program).join(' and ')} missing, and ${why}`;
    },
    install: () => {
      for (const { packages } of missingTools()) {
        const failure = fromApt({ packages }).install();
        if (failure !== null) return failure;
      }
      return existsSync(cacheFolder()) ? null : fetch(cacheFolder());
    },
  };
}

function missingTools(): { program: string; packages: string[] }[] {
  const tools = [{ program: 'java', packages: ['default-jre-headless'] }];
  if (!existsSync(cacheFolder())) tools.push({ program: 'mvn', packages: ['maven'] });
  return tools.filter(({ program }) => programPath(program) === null);
}

/** Null if all went well, the reason otherwise. */
function fetch(folder: string): string | null {
  mkdirSync(dirname(folder), { recursive: true });
  // Another run may install at the same time: the first to finish moves its folder into place.
  const meanwhile = mkdtempSync(`${folder}-`);
  try {
    const failure = copyJars(join(meanwhile, PARTS.jars)) ?? format(meanwhile);
    if (failure !== null) return failure;
    if (existsSync(folder)) return null;
    renameSync(meanwhile, folder);
    rememberClasses(folder);
    return null;
  } catch (error) {
    return existsSync(folder) ? null : String(error);
  } finally {
    rmSync(meanwhile, { recursive: true, force: true });
  }
}

function copyJars(to: string): string | null {
  const goal = 'dependency:copy-dependencies';
  const settings = [`-Dkafka.version=${VERSION}`, '-DincludeScope=runtime', `-DoutputDirectory=${to}`];
  // -U: otherwise Maven remembers a failed download for a day.
  const { status, error } = spawnSync('mvn', ['-q', '-B', '-U', '-f', POM, goal, ...settings], {
    stdio: 'ignore',
    timeout: FETCH_WITHIN_MS,
    killSignal: 'SIGKILL',
  });
  if (status === 0) return null;
  const late = (error as NodeJS.ErrnoException | undefined)?.code === 'ETIMEDOUT';
  if (late) return `Maven did not get it within ${FETCH_WITHIN_MS / 1_000} s`;
  // Not Maven's own message, which names the registry: it may be a private one.
  const byHand = `mvn -f ${relative(ROOT, POM)} -Dkafka.version=${VERSION} dependency:resolve`;
  return `Maven ended with ${status}; '${byHand}' says why`;
}

/** Creates the data folder that every server copies. Also shows that the installed Java can run Kafka. */
function format(folder: string): string | null {
  const data = join(folder, PARTS.data);
  const file = join(folder, 'format.properties');
  // Nothing listens here: only settings of the data folder matter.
  writeFileSync(file, kafkaProperties(9_092, data));
  // 16 bytes in base64. The same for all servers, which never meet.
  const args = ['format', '--cluster-id', 'ZG9vcmJ1c3Rlci10ZXN0cw', '--config', file];
  const { status, stderr, error } = spawnSync('java', javaArgs(folder, 'kafka.tools.StorageTool', args), {
    stdio: ['ignore', 'ignore', 'pipe'],
    timeout: FORMAT_WITHIN_MS,
    killSignal: 'SIGKILL',
    encoding: 'utf8',
  });
  rmSync(file);
  if (status === 0) return null;
  const line = stderr?.split('\n').find((one) => /^(Error|Exception)/.test(one));
  return `java: ${line ?? error?.message ?? `ended with ${status}`}`;
}

/**
 * Runs Kafka for a few seconds, and lets Java store the loaded classes. If that fails, Kafka only starts a
 * little more slowly, so the result is not checked.
 */
function rememberClasses(folder: string): void {
  const place = mkdtempSync(`${folder}-`);
  try {
    const data = join(place, 'data');
    cpSync(join(folder, PARTS.data), data, { recursive: true });
    const file = join(place, 'server.properties');
    writeFileSync(file, kafkaProperties(randomInt(12_000, 22_000), data));
    const classes = join(place, PARTS.classes);
    const args = javaArgs(folder, 'kafka.Kafka', [file], [`-XX:ArchiveClassesAtExit=${classes}`]);
    // It stores them when it is asked to end, which takes some seconds more.
    spawnSync('timeout', ['-k', '30', '6', 'java', ...args], { cwd: place, stdio: 'ignore' });
    if (existsSync(classes)) renameSync(classes, join(folder, PARTS.classes));
  } finally {
    rmSync(place, { recursive: true, force: true });
  }
}
