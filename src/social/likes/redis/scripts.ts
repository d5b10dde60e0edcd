import { scriptsBeside } from '../../../base/redis/scripts.ts';

export const scriptNamed = scriptsBeside(import.meta.url);
