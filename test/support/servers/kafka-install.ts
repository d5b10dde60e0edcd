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

/** One that runs on Java 17. */
const VERSION = '4.1.1';
const POM = fileURLToPath(new URL('kafka/pom.xml', import.meta.url));
const FETCH_WITHIN_MS = 120_000;
const FORMAT_WITHIN_MS = 60_000;

/** Kafka's folder, or null. Without Java it is of no use. */
export function findKafka(): string | null {
  const folder = cacheFolder();
  return programPath('java') !== null && existsSync(folder) ? folder : null;
}

/** Outside of the repository: every clone and every run has the same. */
function cacheFolder(): string {
  return join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'doorbuster-tests', `kafka-${VERSION}`);
}

/** Kafka as Maven's registry has it, and Java and Maven from apt-get where they are missing. */
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
  // Another run may be at it at the same time: the first that is done puts it in place, whole.
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
  // -U: Maven remembers for a day that the registry did not have something, or did not answer.
  const { status, error } = spawnSync('mvn', ['-q', '-B', '-U', '-f', POM, goal, ...settings], {
    stdio: 'ignore',
    timeout: FETCH_WITHIN_MS,
    killSignal: 'SIGKILL',
  });
  if (status === 0) return null;
  const late = (error as NodeJS.ErrnoException | undefined)?.code === 'ETIMEDOUT';
  if (late) return `Maven did not get it within ${FETCH_WITHIN_MS / 1_000} s`;
  // Not in Maven's words: they name the registry, which may be a private one.
  const byHand = `mvn -f ${relative(ROOT, POM)} -Dkafka.version=${VERSION} dependency:resolve`;
  return `Maven ended with ${status}; '${byHand}' says why`;
}

/** Makes the data folder of which every server has a copy. Also shows that the Java that is here can run it. */
function format(folder: string): string | null {
  const data = join(folder, PARTS.data);
  const file = join(folder, 'format.properties');
  // Nobody listens: of its settings only those count that the folder is made for.
  writeFileSync(file, kafkaProperties(9_092, data));
  // 16 bytes in base64. The same for all servers: they never meet.
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
 * Runs it for a few seconds, and has Java write down which classes it has then. If that does not succeed it starts a
 * little later each time, and nothing else: that is why nobody looks at the result.
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
    // It writes them down when it is asked to end, and that takes it some seconds more.
    spawnSync('timeout', ['-k', '30', '6', 'java', ...args], { cwd: place, stdio: 'ignore' });
    if (existsSync(classes)) renameSync(classes, join(folder, PARTS.classes));
  } finally {
    rmSync(place, { recursive: true, force: true });
  }
}
