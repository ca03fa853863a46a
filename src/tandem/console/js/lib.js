// What every module builds pages with: Preact, its hooks, and htm instead of a build step.
import { h, render, Fragment } from "../vendor/preact.js";
import htm from "../vendor/htm.js";

export const html = htm.bind(h);
export { render, Fragment };
export { useState, useEffect, useRef, useMemo, useCallback, useReducer, useLayoutEffect } from "../vendor/preact-hooks.js";
